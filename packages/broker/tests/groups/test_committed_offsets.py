import pytest

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.groups.kinds import ExpiryRule
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset, GroupOffsets
from ottla.broker.groups.testing import GroupDriver
from ottla.protocol.topics import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def at(offset: int, timestamp_ms: int = 0, expires_ms: int | None = None) -> CommittedOffset:
    return CommittedOffset(offset=offset, commit_timestamp_ms=timestamp_ms, expire_timestamp_ms=expires_ms)


def test_a_commit_that_is_confirmed_late_does_not_undo_a_later_one() -> None:
    offsets = GroupOffsets()
    offsets.begin([A])
    offsets.begin([A])

    offsets.load(A, at(2), position=11)
    offsets.settled([A])
    offsets.load(A, at(1), position=10)
    offsets.settled([A])

    assert offsets.get(A) == at(2)
    assert offsets.all() == {A: at(2)}


def test_a_pending_commit_keeps_an_old_offset_from_expiring() -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1), 0)
    offsets.begin([A])
    assert offsets.expired(ExpiryRule(None), 1_000, 100) == []

    offsets.settled([A])

    assert offsets.expired(ExpiryRule(None), 1_000, 100) == [A]


@pytest.mark.parametrize(
    ("rule", "now_ms", "expired"),
    [
        (ExpiryRule(None), 149, []),
        (ExpiryRule(None), 150, [A]),
        (ExpiryRule(None), 160, [A, B]),
        (ExpiryRule(1_000), 1_099, []),
        (ExpiryRule(1_000), 1_100, [A, B]),
        (ExpiryRule(None, frozenset({"a"})), 10_000, [B]),
    ],
)
def test_offsets_expire_by_their_rule(rule: ExpiryRule, now_ms: int, expired: list[TopicPartition]) -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1, 50), 0)
    offsets.load(B, at(1, 60), 0)

    assert offsets.expired(rule, now_ms, 100) == expired


def test_an_expire_timestamp_wins_over_the_retention() -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1, 0, expires_ms=10_000), 0)

    assert offsets.expired(ExpiryRule(None), 9_999, 100) == []
    assert offsets.expired(ExpiryRule(None), 10_000, 100) == [A]


def test_the_expiry_rule_depends_on_the_group() -> None:
    driver = GroupDriver()
    assert driver.group.expiry_rule() == ExpiryRule(None)
    metadata = b"\0\0\0\0\0\1\0\1a\0\0\0\0"
    (member,) = driver.stable(1, protocols=(("range", metadata),))
    assert driver.group.expiry_rule() == ExpiryRule(None, frozenset({"a"}))
    driver.join()
    assert driver.group.expiry_rule() is None
    driver.now_ms = 5_000
    driver.leave(member)
    driver.wait(100_000)
    driver.wait(300_000)
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.expiry_rule() == ExpiryRule(driver.group.state_since_ms)


def test_a_group_with_unreadable_subscriptions_keeps_its_offsets() -> None:
    driver = GroupDriver()
    driver.stable(1, protocols=(("range", b"?"),))

    assert driver.group.expiry_rule() is None
    assert driver.group.is_subscribed_to("anything")


def test_offsets_of_an_open_transaction_are_not_seen_and_make_fetches_unstable() -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1), 0)
    offsets.written_transactional(7, {A: at(5)}, position=3)

    assert offsets.is_unstable(A)
    assert not offsets.is_unstable(B)
    assert offsets.get(A) == at(1)
    assert offsets.expired(ExpiryRule(None), 10**6, 1) == []


@pytest.mark.parametrize(("commit", "offset"), [(True, 5), (False, 1)])
def test_the_end_of_a_transaction_applies_or_drops_its_offsets(commit: bool, offset: int) -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1), 0)
    offsets.written_transactional(7, {A: at(5)}, position=3)

    offsets.end_transaction(7, commit=commit)

    assert offsets.get(A) == at(offset)
    assert not offsets.is_unstable(A)


def test_forget_returns_the_offsets_that_need_a_tombstone() -> None:
    offsets = GroupOffsets()
    offsets.load(A, at(1), 0)
    offsets.written_transactional(7, {B: at(5)}, position=3)

    assert offsets.forget([A, B, TopicPartition("c", 0)]) == [A, B]
    assert offsets.is_idle
