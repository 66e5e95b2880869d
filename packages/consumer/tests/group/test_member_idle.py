"""A member leaves when the application does not ask for records, not for what the group takes itself."""

from __future__ import annotations

from ottla.consumer.assignors import RangeAssignor
from ottla.consumer.group.leadership import encode_assignment
from ottla.consumer.group.rebalance import MemberStateMachine
from ottla.consumer.group.rebalance_events import (
    Adopted,
    Join,
    Joined,
    Leave,
    MemberSettings,
    Phase,
    Polled,
    Subscribed,
    Synced,
    TimePassed,
)
from ottla.protocol.topics import TopicPartition

RULES = MemberSettings(group_id="g", assignors=(RangeAssignor(),), max_poll_interval_ms=1_000)


def joined(member: MemberStateMachine, asked_ms: float | None = None) -> None:
    """Join a group that takes from 100 to 3100 ms for it."""
    (join,) = member.step(Subscribed(frozenset({"t"})), 100)
    assert isinstance(join, Join)
    if asked_ms is not None:
        member.step(Polled(), asked_ms)
    member.step(Joined(join.token, "me", 1, "range", leader_id="other"), 3_000)
    member.step(Synced(join.token, encode_assignment([TopicPartition("t", 0)])), 3_050)
    member.step(Adopted(), 3_100)
    assert member.phase is Phase.STABLE


def test_a_group_that_takes_longer_than_the_poll_interval_is_joined_all_the_same() -> None:
    member = MemberStateMachine(RULES, 0)
    joined(member)
    assert member.step(TimePassed(), 4_099) == []
    assert member.phase is Phase.STABLE


def test_a_member_that_is_not_polled_after_joining_leaves() -> None:
    member = MemberStateMachine(RULES, 0)
    joined(member, asked_ms=2_000)
    effects = member.step(TimePassed(), 4_100)
    assert any(isinstance(effect, Leave) for effect in effects)
