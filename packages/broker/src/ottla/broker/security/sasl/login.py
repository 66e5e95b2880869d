"""The login of one session: Kafka's SASL exchange as a state machine, without network and tasks.

A client may ask for the versions, proposes a mechanism (SaslHandshake), and sends its tokens: in
SaslAuthenticate after version 1 of the handshake, with no header but their sizes after version 0. A login
that has a lifetime is repeated on the same connection (KIP-368), by the same principal and mechanism.

    HANDSHAKE --handshake--> TOKENS --last token--> AUTHENTICATED --handshake--> TOKENS (again)
                                \\--refused--> REFUSED, as after any error: the connection closes

Requests out of this order close the connection, or are answered ILLEGAL_SASL_STATE where Kafka does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.security.principal import Principal
from ottla.broker.security.sasl.mechanisms import (
    Evaluation,
    Identity,
    LoginInterrupted,
    MakeMechanism,
    ServerMechanism,
    TokenRefused,
    evaluate,
)
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import (
    IllegalSaslState,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from ottla.zookeeper.frozen_classes import frozen

MIN_REAUTH_INTERVAL_MS: Final = 1_000
"""Logins of one connection that begin faster after each other are refused, as in Kafka."""
_KERBEROS: Final = "GSSAPI"
_KERBEROS_BEGINS: Final = 0x60
"""The first byte of a context's first token (RFC 2743); no request of Kafka begins with it."""

Work = Callable[[], Evaluation]


async def at_once(work: Work) -> Evaluation:
    """Run work that does not block."""
    return work()


class LoginState(Enum):
    """The step of an exchange that comes next."""

    HANDSHAKE = "handshake"
    TOKENS = "authentication"
    AUTHENTICATED = "requests"
    REFUSED = "nothing"


@dataclass(slots=True, kw_only=True)
class ListenerLogins:
    """The rules for logins on one listener. Other settings replace them for every login that begins later."""

    mechanisms: Mapping[str, MakeMechanism]
    """The enabled mechanisms, in the order of `sasl.enabled.mechanisms`."""
    max_reauth_ms: Mapping[str, int]
    """`connections.max.reauth.ms` of each mechanism that has one."""
    max_token_bytes: int = 524_288
    """`sasl.server.max.receive.size`"""
    failed_delay_ms: int = 100
    """`connection.failed.authentication.delay.ms`"""
    counts: LoginCounts
    warnings: LimitedWarnings
    """Where refused logins are logged."""
    run: Callable[[Work], Awaitable[Evaluation]] = at_once
    """Runs the evaluation of tokens that may block, on a thread."""
    may_block: Callable[[str, bytes], bool] = lambda mechanism, token: False
    """Whether the evaluation of a mechanism's token may block, or takes long."""

    def replace_by(self, other: ListenerLogins) -> None:
        """Take the rules of other settings; the counts and the log stay."""
        self.mechanisms, self.max_reauth_ms = other.mechanisms, other.max_reauth_ms
        self.max_token_bytes, self.failed_delay_ms = other.max_token_bytes, other.failed_delay_ms


class LoginCounts:
    """Counts of logins on one listener, which are its metrics."""

    def __init__(self) -> None:
        self.successful = 0
        self.successful_again = 0
        self.successful_without_reauth = 0
        self.failed = 0
        self.failed_again = 0
        self.killed = 0
        """Connections that sent a request after the end of their login."""


@frozen
class Answer:
    """The answer to a token, None for no answer; `principal` is set when the login is complete."""

    token: bytes | None
    principal: Principal | None = None
    identity: Identity | None = None
    lifetime_ms: int = 0
    """How long the login lasts; 0 for no end, or an end that has come."""
    ends: bool = False
    """Whether the login has an end."""


class Login:
    """The login of one connection, for the first time and again."""

    def __init__(
        self, rules: ListenerLogins, now_ms: Callable[[], float], monotonic_ms: Callable[[], float]
    ) -> None:
        """`now_ms` is the time of the day, by which tokens end."""
        self.rules = rules
        self.state = LoginState.HANDSHAKE
        self.takes_raw_tokens = False
        """Whether the next frame is a token, without the header of a request."""
        self.mechanism_name = ""
        self.failure = ""
        """Why the login was refused, for the log of the broker."""
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._mechanism: ServerMechanism | None = None
        self._is_evaluating = False
        self._principal: Principal | None = None
        self.identity: Identity | None = None
        """The identity of the last login that succeeded."""
        self._has_end = False
        self._changed_mechanism: str | None = None
        """The refusal of a login by another mechanism than before, which Kafka sends for the first token."""
        self._began_again_ms: float | None = None

    @property
    def is_again(self) -> bool:
        """Whether the connection was logged in before."""
        return self._principal is not None

    def why_not(self, api_key: int) -> str | None:
        """Return why a request may not come now, or None: for a session that is not logged in."""
        if self.state is LoginState.AUTHENTICATED:  # and its time is over
            if api_key == ApiKey.SASL_HANDSHAKE:
                return None
            self.rules.counts.killed += 1
            return "the login has ended, and the client did not log in again"
        if self.state is LoginState.HANDSHAKE:
            is_wanted = api_key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
        else:
            is_wanted = api_key in (ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE)
        return None if is_wanted else f"API key {api_key} during SASL {self.state.value}"

    # ---- the handshake

    def handshake(self, mechanism: str, version: int) -> None:
        """Take the mechanism that a client proposes.

        Raises UnsupportedSaslMechanism, after which the connection closes, and IllegalSaslState.
        """
        if self.state is LoginState.AUTHENTICATED:
            self._begin_again(mechanism)
        elif self.state is not LoginState.HANDSHAKE:
            raise self._refused(IllegalSaslState("SaslHandshake during SASL authentication"))
        make = self.rules.mechanisms.get(mechanism)
        if make is None:
            raise self._refused(UnsupportedSaslMechanism(f"mechanism {mechanism[:100]!r} is not enabled"))
        self.mechanism_name, self._mechanism = mechanism, make()
        self.state, self.takes_raw_tokens = LoginState.TOKENS, version == 0

    def _begin_again(self, mechanism: str) -> None:
        """Begin to log in again; without a lifetime, or too soon after the last time, nothing begins."""
        now_ms, began_ms = self._monotonic_ms(), self._began_again_ms
        if not self._has_end or (began_ms is not None and now_ms - began_ms < MIN_REAUTH_INTERVAL_MS):
            raise IllegalSaslState("SaslHandshake request received after successful authentication")
        self._began_again_ms = now_ms
        if mechanism != self.mechanism_name:
            self._changed_mechanism = (
                f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication "
                f"of mechanism '{self.mechanism_name}'"
            )

    def begins_with_token(self, first_byte: int) -> bool:
        """Return whether a frame is a token of Kerberos, as clients of Kafka 0.9.0 begin with."""
        return (
            first_byte == _KERBEROS_BEGINS
            and self.state is LoginState.HANDSHAKE
            and _KERBEROS in self.rules.mechanisms
        )

    def begin_with_token(self) -> None:
        """Begin a login by Kerberos, whose tokens have no header."""
        self.handshake(_KERBEROS, 0)

    # ---- tokens

    def may_block(self, token: bytes) -> bool:
        """Whether the work that `begin` returns for a token may block."""
        return self.rules.may_block(self.mechanism_name, token)

    def take(self, token: bytes, *, may_log_in_again: bool = True) -> Answer:
        """Answer a token of a mechanism that does not block: `begin` and `finish` at once."""
        return self.finish(self.begin(token)(), may_log_in_again=may_log_in_again)

    def begin(self, token: bytes) -> Work:
        """Return the work that evaluates a token, which may be done on a thread; `finish` takes the outcome.

        Raises SaslAuthenticationFailed with the words for the client, after which the connection closes, and
        IllegalSaslState, after which it does so unless the session is logged in.
        """
        if self.state is LoginState.AUTHENTICATED:
            raise IllegalSaslState("SaslAuthenticate request received after successful authentication")
        if self.state is not LoginState.TOKENS or self._mechanism is None or self._is_evaluating:
            raise self._refused(IllegalSaslState("SaslAuthenticate before the handshake"))
        if self._changed_mechanism is not None:
            raise self._refused(SaslAuthenticationFailed(self._changed_mechanism))
        if len(token) > self.rules.max_token_bytes:
            raise self._refused(
                SaslAuthenticationFailed(self._invalid_credentials()),
                f"a token of {len(token)} bytes, more than sasl.server.max.receive.size",
            )
        self._is_evaluating = True
        return partial(evaluate, self._mechanism, token)

    def finish(self, evaluation: Evaluation, *, may_log_in_again: bool) -> Answer:
        """Return the answer to a token; clients of the first SaslAuthenticate cannot log in again.

        Raises as `begin` does, and `LoginInterrupted`.
        """
        self._is_evaluating = False
        error, identity = evaluation.error, evaluation.identity
        if error is not None:
            raise self._failed(error)
        if identity is None:
            return Answer(evaluation.answer)
        return self._accept(evaluation.answer, identity, may_log_in_again)

    def _failed(self, error: Exception) -> Exception:
        """Return the error for the client, with the reason for the log."""
        if isinstance(error, LoginInterrupted):
            self._refused(SaslAuthenticationFailed(), str(error))
            return error
        if isinstance(error, TokenRefused):
            return self._refused(error, error.reason)
        if isinstance(error, SaslAuthenticationFailed):
            return self._refused(error)
        return self._refused(SaslAuthenticationFailed(self._invalid_credentials()), str(error))

    def _invalid_credentials(self) -> str:
        step = "re-authentication" if self.is_again else "authentication"
        return (
            f"Authentication failed during {step} due to invalid credentials "
            f"with SASL mechanism {self.mechanism_name}"
        )

    def _accept(self, answer: bytes | None, identity: Identity, may_log_in_again: bool) -> Answer:
        principal, before = Principal("User", identity.name), self._principal
        if before is not None and principal != before:
            message = f"Cannot change principals during re-authentication from {before.type}.{before.name}"
            raise self._refused(SaslAuthenticationFailed(f"{message}: {principal.type}.{principal.name}"))
        counts = self.rules.counts
        if before is None:
            counts.successful += 1
            counts.successful_without_reauth += not may_log_in_again
        else:
            counts.successful_again += 1
        lifetime_ms = self._lifetime_ms(identity)
        self.identity = identity
        self._principal, self._mechanism, self._has_end = principal, None, lifetime_ms is not None
        self.state, self.takes_raw_tokens = LoginState.AUTHENTICATED, False
        return Answer(answer, principal, identity, lifetime_ms or 0, lifetime_ms is not None)

    def _lifetime_ms(self, identity: Identity) -> int | None:
        """Return how long the login lasts; None without an end."""
        ends = []
        if max_reauth_ms := self.rules.max_reauth_ms.get(self.mechanism_name, 0):
            ends.append(max_reauth_ms)
        if identity.expires_at_ms is not None:
            ends.append(int(identity.expires_at_ms - self._now_ms()))
        return max(0, min(ends)) if ends else None

    def _refused(self, error: KafkaError, reason: str = "") -> KafkaError:
        if self.state is not LoginState.REFUSED:
            if self.is_again:
                self.rules.counts.failed_again += 1
            else:
                self.rules.counts.failed += 1
            self.failure = reason or str(error)
        self.state, self._mechanism = LoginState.REFUSED, None
        return error
