"""The server's side of a SASL mechanism: what all have in common, and PLAIN."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ottla.client.jaas import LoginModule
from ottla.protocol.errors import SaslAuthenticationFailed
from ottla.zookeeper.frozen_classes import frozen

_USER_PREFIX: Final = "user_"


class MalformedToken(Exception):
    """A client's token is not one of its mechanism, or proves nothing.

    The message is for the log of the broker: the client gets the same answer for each.
    """


class LoginInterrupted(Exception):
    """A login failed for a reason that passes: the connection closes without an answer, as in Kafka.

    A client takes a refusal for final, and a closed connection for one to open again.
    """


class TokenRefused(SaslAuthenticationFailed):
    """A refusal with words for the client, and the reason for the log of the broker."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@frozen
class Identity:
    """The name that a login has proved."""

    name: str
    expires_at_ms: int | None = None
    """When the proof ends by itself, by the clock of the day."""
    is_of_delegation_token: bool = False


class ServerMechanism(Protocol):
    """One login of one client. It is asked again until it has an identity."""

    identity: Identity | None
    """Set when the login is complete."""

    def evaluate(self, token: bytes) -> bytes | None:
        """Return the answer to a token; None for no answer, which tokens with a header cannot express.

        Raises SaslAuthenticationFailed with a message for the client, `MalformedToken` or `LoginInterrupted`.
        """
        ...


@frozen
class Evaluation:
    """The outcome of one token: the answer or the error, and the name once it is proved."""

    answer: bytes | None
    identity: Identity | None = None
    error: Exception | None = None


def evaluate(mechanism: ServerMechanism, token: bytes) -> Evaluation:
    """Evaluate a token; the errors of a mechanism become part of the outcome."""
    try:
        answer = mechanism.evaluate(token)
    except (SaslAuthenticationFailed, MalformedToken, LoginInterrupted) as error:
        return Evaluation(None, error=error)
    return Evaluation(answer, mechanism.identity)


MakeMechanism = Callable[[], ServerMechanism]
"""Begins one login."""


class PlainUsers:
    """Users and passwords of a JAAS line: the options `user_<name>` of PlainLoginModule."""

    def __init__(self, module: LoginModule) -> None:
        self._digests: Mapping[str, bytes] = {
            name.removeprefix(_USER_PREFIX): _digest(password)
            for name, password in module.options.items()
            if name.startswith(_USER_PREFIX)
        }
        self._nobody = _digest("")

    def check(self, username: str, password: str) -> bool:
        """Return whether a password is a user's, in a time that says nothing of either."""
        expected = self._digests.get(username, self._nobody)
        return hmac.compare_digest(_digest(password), expected) and username in self._digests


def _digest(password: str) -> bytes:
    """Passwords are compared by digests: their lengths would show in the time."""
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


class PlainServer:
    """PLAIN (RFC 4616): the client sends name and password in one token."""

    def __init__(self, users: PlainUsers) -> None:
        self._users = users
        self.identity: Identity | None = None

    def evaluate(self, token: bytes) -> bytes:
        """Check name and password."""
        authorization_id, username, password = _plain_fields(token)
        if not username:
            raise SaslAuthenticationFailed("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationFailed("Authentication failed: password not specified")
        if not self._users.check(username, password):
            raise SaslAuthenticationFailed("Authentication failed: Invalid username or password")
        check_authorization_id(authorization_id, username)
        self.identity = Identity(username)
        return b""


def _plain_fields(token: bytes) -> list[str]:
    try:
        fields = token.decode().split("\0")
    except UnicodeDecodeError:
        raise MalformedToken("the token of PLAIN is not UTF-8") from None
    if len(fields) != 3:
        raise MalformedToken(f"the token of PLAIN has {len(fields)} fields in place of 3")
    return fields


def check_authorization_id(authorization_id: str, username: str) -> None:
    """Refuse a client that asks to act as somebody else."""
    if authorization_id and authorization_id != username:
        raise SaslAuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from username"
        )
