"""Limits on handshakes that are not finished, with a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

from ottla.broker.quotas.handshakes import UnfinishedHandshakes


class Half:
    """A login that is not finished."""

    def __init__(self) -> None:
        self.listener_name, self.reason = "SSL", ""

    def give_up(self, reason: str) -> None:
        self.reason = reason


class Times:
    """The clock and the timer of a loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any]] = []

    def now_s(self) -> float:
        return self.now

    def call_at(self, when_s: float, call: Any) -> Any:
        self.timers.append((when_s, call))
        return self

    def pass_until(self, now_s: float) -> None:
        self.now = now_s
        due, self.timers = [timer for timer in self.timers if timer[0] <= now_s], []
        for _, call in due:
            call()


def test_a_login_is_given_up_after_ten_seconds() -> None:
    times = Times()
    logins = UnfinishedHandshakes(times.now_s, times.call_at)
    early, done, late = Half(), Half(), Half()
    for half in (early, done):
        assert logins.begin(half, "10.0.0.1") is None
    logins.end(done)
    times.now = 5.0
    assert logins.begin(late, "10.0.0.1") is None

    times.pass_until(10.0)

    assert (early.reason, done.reason, late.reason) == ("not finished within 10 s", "", "")
    assert len(logins) == 1
    times.pass_until(15.0)
    assert late.reason == "not finished within 10 s"


def test_a_flood_that_is_over_is_given_up_in_several_turns() -> None:
    times = Times()
    logins = UnfinishedHandshakes(times.now_s, times.call_at)
    flood = [Half() for _ in range(150)]
    for half in flood:
        logins.begin(half, "10.0.0.1")

    left = []
    while len(logins):
        times.pass_until(10.0)
        left.append(len(logins))

    assert left == [86, 22, 0]


def test_a_flood_from_one_address_leaves_room_for_the_others() -> None:
    times = Times()
    logins = UnfinishedHandshakes(times.now_s, times.call_at, most=100)
    flood = [Half() for _ in range(300)]
    refused = [logins.begin(half, "10.6.6.6") for half in flood]
    assert sum(reason is not None for reason in refused) == 200

    others = [Half() for _ in range(49)]
    assert [logins.begin(half, f"10.0.0.{number % 7}") for number, half in enumerate(others)] == [None] * 49

    assert len(logins) == 100
    assert not any(half.reason for half in others)
    assert sum(bool(half.reason) for half in flood) == 49


def test_all_addresses_of_an_ipv6_network_are_one() -> None:
    times = Times()
    logins = UnfinishedHandshakes(times.now_s, times.call_at, most=10)
    for number in range(30):
        logins.begin(Half(), f"2001:db8::{number:x}")

    assert logins.begin(Half(), "2001:db8:0:1::1") is None
    assert logins.begin(Half(), "2001:db8::ffff") is not None
    assert len(logins) == 10


def test_the_handshakes_of_a_listener_are_found() -> None:
    times = Times()
    logins = UnfinishedHandshakes(times.now_s, times.call_at)
    half, other = Half(), Half()
    other.listener_name = "OTHER"
    for unfinished in (half, other):
        assert logins.begin(unfinished, "10.0.0.1") is None

    assert logins.of_listener("SSL") == [half]
