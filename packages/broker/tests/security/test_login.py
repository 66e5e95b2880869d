"""The login of a session, as a state machine: what may come when, and what each refusal answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.security.principal import Principal
from ottla.broker.security.sasl.login import Answer, ListenerLogins, Login, LoginCounts, LoginState
from ottla.broker.security.sasl.mechanisms import Identity, MalformedToken
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism

ALICE = Principal("User", "alice")


class Words:
    """A mechanism of two tokens: "hello", and then a name."""

    def __init__(self, clock: Clock) -> None:
        self.identity: Identity | None = None
        self._clock = clock
        self._greeted = False

    def evaluate(self, token: bytes) -> bytes:
        if not self._greeted:
            if token != b"hello":
                raise MalformedToken("no greeting")
            self._greeted = True
            return b"name?"
        if token == b"mallory":
            raise SaslAuthenticationFailed("not you")
        name, _, lifetime_ms = token.decode().partition("/")
        expires_at_ms = self._clock.day_ms + int(lifetime_ms) if lifetime_ms else None
        self.identity = Identity(name, expires_at_ms)
        return b"welcome"


class Clock:
    def __init__(self) -> None:
        self.day_ms, self.monotonic_ms = 1_000_000, 5.0

    def advance(self, ms: int) -> None:
        self.day_ms += ms
        self.monotonic_ms += ms


class Fixture:
    def __init__(self, max_reauth_ms: Mapping[str, int] | None = None) -> None:
        self.clock = Clock()
        self.counts = LoginCounts()
        rules = ListenerLogins(
            mechanisms={"WORDS": lambda: Words(self.clock), "OTHER": lambda: Words(self.clock)},
            max_reauth_ms=max_reauth_ms or {},
            max_token_bytes=100,
            counts=self.counts,
            warnings=LimitedWarnings(logging.getLogger(), lambda: 0.0),
        )
        self.login = Login(rules, lambda: self.clock.day_ms, lambda: self.clock.monotonic_ms)

    def log_in(self, name: bytes = b"alice", mechanism: str = "WORDS") -> Answer:
        self.login.handshake(mechanism, 1)
        assert self.login.take(b"hello") == Answer(b"name?")
        return self.login.take(name)


def test_a_login_ends_with_the_principal() -> None:
    fixture = Fixture()

    answer = fixture.log_in()

    assert answer == Answer(b"welcome", ALICE, Identity("alice"))
    assert fixture.login.state is LoginState.AUTHENTICATED
    assert (fixture.counts.successful, fixture.counts.successful_without_reauth) == (1, 0)


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (LoginState.HANDSHAKE, {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}),
        (LoginState.TOKENS, {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
        (LoginState.AUTHENTICATED, {ApiKey.SASL_HANDSHAKE}),
    ],
)
def test_each_step_accepts_its_requests_alone(state: LoginState, allowed: set[ApiKey]) -> None:
    fixture = Fixture()
    fixture.login.state = state

    assert {key for key in ApiKey if fixture.login.why_not(key) is None} == allowed


def test_the_first_handshake_of_kafka_is_followed_by_tokens_without_a_header() -> None:
    fixture = Fixture()

    raw = [fixture.login.takes_raw_tokens]
    fixture.login.handshake("WORDS", 0)
    raw.append(fixture.login.takes_raw_tokens)
    fixture.login.take(b"hello", may_log_in_again=False)
    fixture.login.take(b"alice", may_log_in_again=False)
    raw.append(fixture.login.takes_raw_tokens)

    assert raw == [False, True, False]
    assert fixture.counts.successful_without_reauth == 1


def test_a_mechanism_that_is_not_enabled_is_refused() -> None:
    fixture = Fixture()

    with pytest.raises(UnsupportedSaslMechanism, match="'PLAIN' is not enabled"):
        fixture.login.handshake("PLAIN", 1)

    assert fixture.login.state is LoginState.REFUSED
    assert fixture.counts.failed == 1


def test_a_second_handshake_amid_a_login_is_refused() -> None:
    fixture = Fixture()
    fixture.login.handshake("WORDS", 1)

    with pytest.raises(IllegalSaslState):
        fixture.login.handshake("WORDS", 1)

    assert fixture.login.state is LoginState.REFUSED


def test_a_token_before_the_handshake_or_behind_a_refusal_is_refused() -> None:
    fixture = Fixture()
    for _ in range(2):
        with pytest.raises(IllegalSaslState):
            fixture.login.take(b"hello")
    assert fixture.counts.failed == 1


@pytest.mark.parametrize("token", [b"", b"hi", b"hello" * 100])
def test_the_client_does_not_see_why_its_token_is_wrong(token: bytes) -> None:
    fixture = Fixture()
    fixture.login.handshake("WORDS", 1)

    with pytest.raises(SaslAuthenticationFailed) as raised:
        fixture.login.take(token)

    assert str(raised.value) == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism WORDS"
    )
    assert fixture.login.failure in (
        "no greeting",
        "a token of 500 bytes, more than sasl.server.max.receive.size",
    )


def test_the_words_of_a_mechanism_reach_the_client() -> None:
    with pytest.raises(SaslAuthenticationFailed, match=r"^not you$"):
        Fixture().log_in(b"mallory")


# ---- lifetimes (KIP-368)


@pytest.mark.parametrize(
    ("max_reauth_ms", "name", "lifetime_ms", "ends"),
    [
        (0, b"alice", 0, False),
        (5_000, b"alice", 5_000, True),
        (0, b"alice/7000", 7_000, True),
        (5_000, b"alice/7000", 5_000, True),
        (9_000, b"alice/7000", 7_000, True),
        (9_000, b"alice/-1", 0, True),
    ],
)
def test_a_login_lasts_as_long_as_its_token_and_the_listener_allow(
    max_reauth_ms: int, name: bytes, lifetime_ms: int, ends: bool
) -> None:
    answer = Fixture({"WORDS": max_reauth_ms, "OTHER": 1}).log_in(name)

    assert (answer.lifetime_ms, answer.ends) == (lifetime_ms, ends)


def test_a_client_logs_in_again_on_the_same_connection() -> None:
    fixture = Fixture({"WORDS": 60_000})
    fixture.log_in()
    fixture.clock.advance(50_000)

    answer = fixture.log_in()

    assert (answer.principal, answer.lifetime_ms) == (ALICE, 60_000)
    assert (fixture.counts.successful, fixture.counts.successful_again) == (1, 1)


def test_without_a_lifetime_nobody_logs_in_again() -> None:
    fixture = Fixture()
    fixture.log_in()

    with pytest.raises(IllegalSaslState):
        fixture.login.handshake("WORDS", 1)

    assert fixture.login.state is LoginState.AUTHENTICATED


def test_logins_of_a_connection_that_follow_too_fast_are_refused_but_not_the_session() -> None:
    fixture = Fixture({"WORDS": 60_000})
    fixture.log_in()
    fixture.log_in()
    fixture.clock.advance(999)

    with pytest.raises(IllegalSaslState):
        fixture.login.handshake("WORDS", 1)
    assert fixture.login.state is LoginState.AUTHENTICATED

    fixture.clock.advance(1)
    fixture.log_in()
    assert fixture.counts.successful_again == 2


def test_the_principal_of_a_connection_cannot_change() -> None:
    fixture = Fixture({"WORDS": 60_000})
    fixture.log_in()

    with pytest.raises(SaslAuthenticationFailed) as raised:
        fixture.log_in(b"bob")

    message = "Cannot change principals during re-authentication from User.alice: User.bob"
    assert str(raised.value) == message
    assert (fixture.counts.failed, fixture.counts.failed_again) == (0, 1)


def test_the_mechanism_of_a_connection_cannot_change() -> None:
    fixture = Fixture({"WORDS": 60_000})
    fixture.log_in()
    fixture.login.handshake("OTHER", 1)

    with pytest.raises(SaslAuthenticationFailed, match="'OTHER' requested by client is not supported"):
        fixture.login.take(b"hello")


def test_a_request_behind_the_end_of_a_login_is_counted() -> None:
    fixture = Fixture({"WORDS": 60_000})
    fixture.log_in()

    assert fixture.login.why_not(ApiKey.PRODUCE) == (
        "the login has ended, and the client did not log in again"
    )
    assert fixture.counts.killed == 1
