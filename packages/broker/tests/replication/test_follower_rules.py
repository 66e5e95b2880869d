"""The decisions of a follower: where it fetches, where it truncates, and when it waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.replication.follower_rules import (
    Append,
    AskBounds,
    AskEpochEnd,
    BackOff,
    FetchPosition,
    Ignore,
    PartitionFetch,
    RestartAt,
    TruncateTo,
    backoff_ms,
    truncation_to,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import EpochEndOffset, PartitionData
from ottla.protocol.storage.checkpoints import EpochStart


@dataclass
class Bounds:
    """A log that is nothing but its bounds."""

    log_end_offset: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    leader_epochs: LeaderEpochs = field(default_factory=LeaderEpochs)


def log(end: int, *epochs: tuple[int, int], start: int = 0, high_watermark: int = 0) -> Bounds:
    """A log that ends at `end`, with (epoch, start offset) entries."""
    return Bounds(end, start, high_watermark, LeaderEpochs(EpochStart(*one) for one in epochs))


def answer(code: ErrorCode = ErrorCode.NONE) -> PartitionData:
    return PartitionData(partition_index=0, error_code=int(code), high_watermark=7, log_start_offset=2)


def diverging(epoch: int, end: int) -> PartitionData:
    found = answer()
    found.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
    return found


def test_a_follower_asks_for_its_log_end_and_names_its_last_epoch() -> None:
    fetch = PartitionFetch(leader_epoch=5)

    assert fetch.position(log(10, (2, 0), (4, 8), start=3)) == FetchPosition(10, 5, 4, 3)
    assert fetch.position(log(0)) == FetchPosition(0, 5, -1, 0)


def test_an_answer_brings_records_the_high_watermark_and_the_log_start() -> None:
    fetch, own = PartitionFetch(5), log(10, (4, 0))

    assert fetch.on_answer(fetch.position(own), own, answer()) == Append(7, 2)


@pytest.mark.parametrize("asked", [FetchPosition(9, 5, 4, 0), FetchPosition(10, 4, 4, 0)])
def test_an_answer_for_another_log_end_or_leadership_is_ignored(asked: FetchPosition) -> None:
    fetch, own = PartitionFetch(5), log(10, (4, 0))

    assert fetch.on_answer(asked, own, answer()) == Ignore()
    assert fetch.on_answer(asked, own, diverging(3, 1)) == Ignore()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_an_error_of_a_partition_lets_it_wait(code: ErrorCode) -> None:
    fetch, own = PartitionFetch(5), log(10, (4, 0))

    assert fetch.on_answer(fetch.position(own), own, answer(code)) == BackOff(int(code))


# ---- truncation (KIP-101, KIP-279)


@pytest.mark.parametrize(
    ("own", "epoch", "end", "expected"),
    [
        (log(10, (1, 0), (2, 6)), 1, 4, 4),  # the leader's end of the common epoch is the smaller one
        (log(10, (1, 0), (2, 6)), 1, 8, 6),  # the own one is
        (log(10, (1, 0), (4, 6)), 3, 9, 6),  # 3 is not known here: the end of 1, and the search goes on
        (log(10, (1, 0), (3, 10)), 1, 12, 10),  # 3 was led without a write: only the entry goes
        (log(10, (5, 2)), 3, 4, 2),  # older than all epochs here: from the first one on
        (log(10), -1, 6, 6),
        (log(10), 2, 20, 10),
    ],
)
def test_the_log_is_truncated_to_where_both_end_their_last_common_epoch(
    own: Bounds, epoch: int, end: int, expected: int
) -> None:
    assert truncation_to(own, epoch, end) == TruncateTo(expected)


def test_a_truncation_below_the_log_start_starts_anew_there() -> None:
    assert truncation_to(log(10, (1, 5), (2, 8), start=5), 1, 3) == RestartAt(3)


def test_diverging_answers_lead_any_two_logs_to_a_common_prefix() -> None:
    for seed in range(500):
        random = Random(seed)
        leader, follower = two_logs(random)
        fetch = PartitionFetch(leader_epoch=99)
        for _ in range(50):
            asked = fetch.position(follower)
            found = leader_says(leader, asked)
            if found is None:
                break
            decision = fetch.on_answer(asked, follower, diverging(*found))
            assert isinstance(decision, TruncateTo), seed
            truncate(follower, decision.offset)
        else:
            raise AssertionError(f"seed {seed}: still diverging")
        common = [epoch_at(leader, one) == epoch_at(follower, one) for one in range(follower.log_end_offset)]
        assert all(common), seed


def two_logs(random: Random) -> tuple[Bounds, Bounds]:
    """Two logs with a common prefix; from there on each was written in epochs of its own."""
    prefix, epoch, entries = random.randrange(10), 0, [(0, 0)]
    for _ in range(random.randrange(3)):
        epoch += 1
        entries.append((epoch, entries[-1][1] + random.randrange(1, 4)))
    prefix += entries[-1][1]
    mine, other = (continued(entries, prefix, epoch, odd, random) for odd in (0, 1))
    return mine, other


def continued(entries: list[tuple[int, int]], end: int, epoch: int, odd: int, random: Random) -> Bounds:
    own, entries = epoch * 2 + odd, [(one * 2, start) for one, start in entries]
    for _ in range(random.randrange(4)):
        own += 2 * random.randrange(1, 3)
        entries.append((own, end))
        end += random.randrange(4)
    return log(end, *entries)


def leader_says(leader: Bounds, asked: FetchPosition) -> tuple[int, int] | None:
    """Where the leader finds that logs diverge, as its handler of Fetch does."""
    leader.leader_epochs.assign(99, leader.log_end_offset)
    epoch, end = leader.leader_epochs.end_offset_for(asked.last_fetched_epoch, leader.log_end_offset)
    if asked.last_fetched_epoch >= 0 and (epoch < asked.last_fetched_epoch or end < asked.offset):
        return epoch, end
    return None


def truncate(one: Bounds, offset: int) -> None:
    one.log_end_offset = min(offset, one.log_end_offset)
    one.leader_epochs.truncate_from_end(one.log_end_offset)


def epoch_at(one: Bounds, offset: int) -> int | None:
    return one.leader_epochs.epoch_for(offset)


# ---- out of range


def out_of_range(own: Bounds, leader_start: int, leader_end: int) -> object:
    fetch = PartitionFetch(5)
    asked = fetch.on_answer(fetch.position(own), own, answer(ErrorCode.OFFSET_OUT_OF_RANGE))
    assert asked == AskBounds()
    return fetch.on_bounds(own, leader_start, leader_end)


def test_a_log_longer_than_the_leaders_is_truncated_to_its_end() -> None:
    assert out_of_range(log(10, (1, 0)), 0, 6) == TruncateTo(6)
    assert out_of_range(log(10, (1, 7), start=7), 0, 6) == RestartAt(6)


def test_a_log_that_ends_before_the_leaders_start_starts_anew_there() -> None:
    assert out_of_range(log(10, (1, 0)), 100, 200) == RestartAt(100)


def test_without_an_epoch_in_common_the_leader_is_asked_and_then_the_high_watermark_decides() -> None:
    fetch, own = PartitionFetch(5), log(10, (4, 0), high_watermark=8)

    assert fetch.on_bounds(own, 0, 20) == AskEpochEnd(4)
    assert fetch.on_epoch_end(own, -1, -1) == TruncateTo(8)

    truncate(own, 8)
    assert fetch.position(own) == FetchPosition(8, 5, -1, 0)
    own.log_end_offset = 12
    own.leader_epochs.assign(5, 8)
    fetch.appended(own)
    assert fetch.position(own) == FetchPosition(12, 5, 5, 0)


def test_the_end_of_an_epoch_that_the_leader_knows_is_where_to_truncate() -> None:
    fetch, own = PartitionFetch(5), log(10, (2, 0), (4, 6))

    assert fetch.on_epoch_end(own, 2, 5) == TruncateTo(5)


# ---- pauses


def test_pauses_grow_up_to_the_setting_and_end_with_a_success() -> None:
    fetch = PartitionFetch(5)
    pauses = []
    for _ in range(7):
        fetch.back_off(1_000.0, 1_000.0)
        pauses.append(fetch.due_ms - 1_000)

    assert pauses == [50, 100, 200, 400, 800, 1_000, 1_000]
    assert not fetch.is_due(1_999)
    assert fetch.is_due(2_000)
    fetch.appended(log(0))
    assert fetch.failures == 0
    assert backoff_ms(3, 0.0) == 0
