"""GSSAPI on the server's side (RFC 4752): tokens of Kerberos, then the agreement on no security layer.

Kafka has the quality of protection `auth` alone: TLS encrypts. The identity is the one that the ticket
proves; an authorization id beside it is ignored, as in Kafka: some clients put the name of the service there.

The library reads `krb5.conf` (or `KRB5_CONFIG`) and the keytab at each login: a keytab that is replaced holds
for the next login. Its calls block, so they belong on the threads of logins.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

from ottla.broker.security.principal_mapping import LocalNames, NoRuleApplies
from ottla.broker.security.sasl.mechanisms import Identity, LoginInterrupted, MalformedToken
from ottla.zookeeper.frozen_classes import frozen

T = TypeVar("T")

_NO_LAYER: Final = 1
"""The bit of the layer that neither signs nor encrypts."""
_OFFER: Final = bytes([_NO_LAYER, 0, 0, 0])
"""No layer, and so no size of what it would take."""
_LONGEST_REASON: Final = 500

_KERBEROS_ERRORS: Final = 2_529_638_912
"""The code of the library for Kerberos' error 0 (RFC 4120, 7.5.9)."""
_PASSING: Final = frozenset({33, 34})
"""A ticket that is not valid yet, and a request that was seen before: Kafka's clients try again."""


class KerberosUnavailable(Exception):
    """The key of the service cannot be used; the message is one line."""


class ContextRefused(Exception):
    """The library refuses a token; the message is for the log of the broker."""

    def __init__(self, reason: str, *, passes: bool = False) -> None:
        super().__init__(reason)
        self.passes = passes
        """Whether the same client may get in a little later."""


class Acceptor(Protocol):
    """The accepting side of one security context. Each method may block, and raises `ContextRefused`."""

    @property
    def is_complete(self) -> bool:
        """Whether both sides have proved their names."""
        ...

    @property
    def initiator(self) -> str:
        """The client's name in Kerberos, once the context is complete."""
        ...

    def step(self, token: bytes) -> bytes:
        """Take a token of the client, and return the one for it; empty for none."""
        ...

    def wrap(self, message: bytes) -> bytes:
        """Sign a message for the client."""
        ...

    def unwrap(self, token: bytes) -> bytes:
        """Return a message of the client whose signature is right."""
        ...


class _Stage(Enum):
    CONTEXT = "context"
    OFFER = "offer"
    """The context is complete, and the client has the last token of it: its next message is empty."""
    LAYER = "layer"


class KerberosServer:
    """One login by GSSAPI."""

    def __init__(self, acceptor: Acceptor, names: LocalNames) -> None:
        self._acceptor = acceptor
        self._names = names
        self._stage = _Stage.CONTEXT
        self.identity: Identity | None = None

    def evaluate(self, token: bytes) -> bytes | None:
        """Take the tokens of the context, offer no layer, and take the client's choice."""
        try:
            if self._stage is _Stage.CONTEXT:
                return self._continue(token)
            if self._stage is _Stage.OFFER:
                return self._offer(token)
            self._agree(token)
            return None
        except ContextRefused as error:
            if error.passes:
                raise LoginInterrupted(str(error)) from None
            raise MalformedToken(str(error)) from None

    def _continue(self, token: bytes) -> bytes:
        if not token:
            raise MalformedToken("an empty token of GSSAPI before the context is complete")
        answer = self._acceptor.step(token)
        if not self._acceptor.is_complete:
            return answer
        self._stage = _Stage.OFFER
        return answer or self._offer(b"")

    def _offer(self, token: bytes) -> bytes:
        if token:
            raise MalformedToken("a token of GSSAPI behind a complete context")
        self._stage = _Stage.LAYER
        return self._acceptor.wrap(_OFFER)

    def _agree(self, token: bytes) -> None:
        chosen = self._acceptor.unwrap(token)
        if len(chosen) < len(_OFFER) or not chosen[0] & _NO_LAYER:
            raise MalformedToken("the client of GSSAPI wants a security layer, which was not offered")
        try:
            self.identity = Identity(self._names.name_of(self._acceptor.initiator))
        except NoRuleApplies as error:
            raise MalformedToken(str(error)) from None


# ---- the library


@frozen
class ServiceKey:
    """The key of the brokers' service, opened: what each login is accepted with."""

    principal: str
    """With its realm."""
    credentials: Any
    default_realm: str

    def begin(self) -> Acceptor:
        """Begin to accept one context."""
        return GssAcceptor(self.credentials)


def open_service_key(principal: str, keytab: str) -> ServiceKey:
    """Open the key of a principal in a keytab, and ask for the default realm; it blocks.

    Raises `KerberosUnavailable`.
    """
    import gssapi

    try:
        with open(keytab, "rb"):
            pass  # the library names neither the file nor the reason
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        credentials = gssapi.Credentials(
            name=name, usage="accept", mechs=[gssapi.MechType.kerberos], store={"keytab": keytab}
        )
    except OSError as error:
        raise KerberosUnavailable(f"no key of {principal} in {keytab}: {error.strerror}") from None
    except gssapi.exceptions.GSSError as error:
        raise KerberosUnavailable(f"no key of {principal} in {keytab}: {_reason(error)}") from None
    return ServiceKey(str(credentials.name), credentials, _default_realm())


def _default_realm() -> str:
    """Return `default_realm` of krb5.conf, which the library appends to a name without one, or nothing."""
    import gssapi

    try:
        name = gssapi.Name("kafka", gssapi.NameType.kerberos_principal)
        return str(name.canonicalize(gssapi.MechType.kerberos)).rpartition("@")[2]
    except gssapi.exceptions.GSSError:
        return ""


class GssAcceptor:
    """Accepts one context with the package gssapi."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._context: Any = None
        self._initiator: Any = None
        self.is_complete = False

    @property
    def initiator(self) -> str:
        """The client's name, `anna@REALM` or `kafka/host@REALM`."""
        from gssapi import raw

        return str(_checked(lambda: raw.display_name(self._initiator, False).name.decode()))

    def step(self, token: bytes) -> bytes:
        """Take a token of the client, and return the one for it."""
        from gssapi import raw

        result = _checked(lambda: raw.accept_sec_context(token, self._credentials, self._context))
        self._context, self._initiator = result.context, result.initiator_name
        self.is_complete = not result.more_steps
        return bytes(result.token or b"")

    def wrap(self, message: bytes) -> bytes:
        """Sign a message."""
        from gssapi import raw

        return bytes(_checked(lambda: raw.wrap(self._context, message, False)).message)

    def unwrap(self, token: bytes) -> bytes:
        """Check the signature of a message."""
        from gssapi import raw

        return bytes(_checked(lambda: raw.unwrap(self._context, token)).message)


def _checked(call: Callable[[], T]) -> T:
    from gssapi.exceptions import GSSError

    try:
        return call()
    except GSSError as error:
        raise ContextRefused(_reason(error), passes=error.min_code - _KERBEROS_ERRORS in _PASSING) from None
    except (UnicodeDecodeError, ValueError):
        raise ContextRefused("a name that is not UTF-8") from None


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_LONGEST_REASON]
