"""The core of a partition: roles, in-sync replicas, high watermark."""

from __future__ import annotations

import random

import pytest

from ottla.broker.log.state.log_state import HighWatermark
from ottla.broker.replication.partition import (
    Assignment,
    HighWatermarkAdvanced,
    IsrChanged,
    IsrProposed,
    LeadershipEnded,
    Partition,
    Role,
)

LAG_MS = 1_000


def assignment(
    leader: int = 1,
    leader_epoch: int = 1,
    partition_epoch: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
) -> Assignment:
    return Assignment(
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        isr=isr,
        replicas=replicas,
    )


def leading(
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    log_end: int = 0,
    min_isr: int = 1,
    high_watermark: int = 0,
) -> Partition:
    partition = Partition(1, min_insync_replicas=min_isr, max_lag_ms=LAG_MS)
    partition.restored(high_watermark, 0, log_end)
    partition.lead(assignment(isr=isr, replicas=replicas), log_end, now_ms=0)
    return partition


def test_alone_a_leader_commits_what_it_appends() -> None:
    partition = leading(isr=(1,), replicas=(1,))

    assert partition.appended(10, now_ms=0) == [HighWatermarkAdvanced(10)]


def test_the_high_watermark_is_the_least_log_end_of_the_isr() -> None:
    partition = leading(log_end=0)
    partition.appended(10, now_ms=0)

    assert partition.fetched(2, 10, 0, now_ms=1) == []
    assert partition.fetched(3, 7, 0, now_ms=1) == [HighWatermarkAdvanced(7)]


def test_a_replica_outside_the_isr_that_lags_does_not_hold_back_the_high_watermark() -> None:
    partition = leading(isr=(1, 2))
    partition.appended(10, now_ms=0)

    assert partition.fetched(2, 10, 0, now_ms=LAG_MS * 2) == [HighWatermarkAdvanced(10)]


def test_a_follower_with_a_longer_log_does_not_count_until_it_is_truncated() -> None:
    partition = leading(isr=(1, 2), log_end=5)

    assert partition.fetched(2, 20, 0, now_ms=1) == []
    assert partition.fetched(3, 20, 0, now_ms=1) == []
    assert partition.appended(10, now_ms=1) == []
    assert partition.fetched(2, 5, 0, now_ms=2) == [HighWatermarkAdvanced(5)]


def test_a_new_leader_keeps_its_high_watermark() -> None:
    partition = leading(log_end=10, high_watermark=4)

    assert partition.high_watermark == 4
    assert partition.epoch_start_offset == 10


def test_a_joiner_counts_from_the_moment_it_is_proposed() -> None:
    partition = leading(isr=(1, 2), log_end=0)
    partition.appended(10, now_ms=0)
    partition.fetched(2, 10, 0, now_ms=1)

    effects = partition.fetched(3, 10, 0, now_ms=2)

    assert effects == [IsrProposed(1, (1, 2, 3), 1, 1)]
    assert partition.maximal_isr == {1, 2, 3}
    assert partition.isr == {1, 2}
    partition.appended(20, now_ms=3)
    assert partition.fetched(2, 20, 0, now_ms=4) == []


def test_a_removal_counts_only_once_it_is_confirmed() -> None:
    partition = leading(isr=(1, 2), replicas=(1, 2), log_end=0)
    partition.appended(10, now_ms=0)
    (proposed,) = partition.shrink(now_ms=LAG_MS + 1)

    assert isinstance(proposed, IsrProposed)
    assert partition.high_watermark == 0

    effects = partition.isr_answered(proposed.token, [1], 2, now_ms=LAG_MS + 2)
    assert effects == [IsrChanged((1,), shrunk=True), HighWatermarkAdvanced(10)]


def test_a_follower_below_the_start_of_the_epoch_may_not_join() -> None:
    partition = leading(isr=(1,), log_end=10, high_watermark=4)
    partition.isr = frozenset({1, 2})  # holds the high watermark at 4

    assert partition.fetched(3, 9, 0, now_ms=1) == []
    assert partition.fetched(3, 10, 0, now_ms=2) == [IsrProposed(1, (1, 2, 3), 1, 1)]


def test_an_answer_to_another_proposal_is_ignored() -> None:
    partition = leading(isr=(1, 2), replicas=(1, 2))
    partition.appended(5, now_ms=0)
    (proposed,) = partition.shrink(now_ms=LAG_MS + 1)
    assert isinstance(proposed, IsrProposed)

    assert partition.isr_answered(proposed.token + 1, [1], 2, now_ms=0) == []
    assert partition.isr == {1, 2}


def test_a_refused_proposal_leaves_the_committed_isr() -> None:
    partition = leading(isr=(1, 2), replicas=(1, 2, 3))
    partition.fetched(3, 0, 0, now_ms=1)
    assert partition.proposal is not None

    partition.isr_refused(partition.proposal.token, now_ms=2)

    assert partition.maximal_isr == {1, 2}


@pytest.mark.parametrize("is_read", [False, True])
def test_a_follower_that_may_not_join_holds_nothing_back_until_it_asks_again(is_read: bool) -> None:
    partition = leading(isr=(1, 2))
    partition.fetched(3, 0, 0, now_ms=1)  # caught up, and about to shut down
    assert partition.proposal is not None
    partition.appended(10, now_ms=2)
    assert partition.fetched(2, 10, 0, now_ms=3) == []

    if is_read:  # the proposal was sent to a controller that is gone
        effects = partition.isr_read(1, [1, 2], 2, now_ms=4)
    else:
        effects = partition.isr_refused(partition.proposal.token, now_ms=4)

    assert effects == [HighWatermarkAdvanced(10)]
    partition.appended(20, now_ms=5)
    assert partition.fetched(2, 20, 0, now_ms=6) == [HighWatermarkAdvanced(20)]
    assert partition.fetched(3, 20, 0, now_ms=7) == [IsrProposed(2, (1, 2, 3), 1, partition.partition_epoch)]


def test_one_proposal_is_in_flight_at_a_time() -> None:
    partition = leading(isr=(1,), replicas=(1, 2, 3))

    assert len(partition.fetched(2, 0, 0, now_ms=1)) == 1
    assert partition.fetched(3, 0, 0, now_ms=1) == []
    assert partition.shrink(now_ms=LAG_MS * 5) == []


def test_below_the_minimum_the_high_watermark_stands_still() -> None:
    partition = leading(isr=(1,), replicas=(1, 2, 3), min_isr=2)

    assert partition.appended(10, now_ms=0) == []
    assert partition.is_under_min_isr


def test_one_replica_is_enough_where_there_is_only_one() -> None:
    partition = leading(isr=(1,), replicas=(1,), min_isr=2)

    assert partition.appended(10, now_ms=0) == [HighWatermarkAdvanced(10)]


def test_a_leader_that_becomes_follower_says_so() -> None:
    partition = leading()

    assert partition.follow(assignment(leader=2, leader_epoch=2)) == [LeadershipEnded(1)]
    assert partition.role is Role.FOLLOWER


def test_leading_on_in_a_new_epoch_is_no_end() -> None:
    partition = leading()

    assert partition.lead(assignment(leader_epoch=2, partition_epoch=2), 0, now_ms=0) == []
    assert partition.leader_epoch == 2


@pytest.mark.parametrize(
    ("leader_epoch", "partition_epoch", "accepted"),
    [(1, 1, False), (0, 5, False), (2, 0, False), (2, 1, True)],
)
def test_only_a_later_epoch_is_accepted(leader_epoch: int, partition_epoch: int, accepted: bool) -> None:
    partition = leading()

    newer = assignment(leader_epoch=leader_epoch, partition_epoch=partition_epoch)

    assert partition.accepts(newer) is accepted


def test_a_lagging_follower_is_one_that_has_not_caught_up_for_too_long() -> None:
    partition = leading(isr=(1, 2), replicas=(1, 2))
    partition.appended(10, now_ms=0)
    partition.fetched(2, 10, 0, now_ms=500)
    partition.appended(20, now_ms=600)

    assert partition.shrink(now_ms=500 + LAG_MS) == []
    assert partition.shrink(now_ms=501 + LAG_MS) != []


def test_the_low_watermark_is_the_least_log_start() -> None:
    partition = leading(log_end=10)
    partition.log_start_offset = 9
    partition.fetched(2, 10, 3, now_ms=1)

    assert partition.low_watermark == 3


@pytest.mark.parametrize(
    ("saved", "start", "end", "high_watermark"), [(5, 0, 10, 5), (15, 0, 10, 10), (5, 7, 10, 7), (0, 0, 0, 0)]
)
def test_a_restored_high_watermark_lies_within_the_log(
    saved: int, start: int, end: int, high_watermark: int
) -> None:
    partition = Partition(1)

    partition.restored(saved, start, end)

    assert partition.high_watermark == high_watermark
    assert (partition.log_start_offset, partition.log_end_offset) == (start, end)


def test_the_core_writes_the_cell_that_its_log_reads() -> None:
    watermark = HighWatermark(3)
    partition = Partition(1, watermark=watermark)
    partition.lead(assignment(isr=(1,), replicas=(1,)), 3, now_ms=0)

    partition.appended_alone(9)

    assert watermark.offset == partition.high_watermark == 9


def test_a_truncation_lowers_the_high_watermark_to_the_end_of_the_log() -> None:
    partition = Partition(1)
    partition.restored(8, 0, 10)

    partition.truncated(0, 9)
    assert partition.high_watermark == 8
    partition.truncated(0, 5)
    assert partition.high_watermark == partition.log_end_offset == 5


def test_a_log_that_begins_anew_has_its_high_watermark_at_its_start() -> None:
    partition = Partition(1)
    partition.restored(8, 0, 10)

    partition.truncated(500, 500)

    assert (partition.high_watermark, partition.log_start_offset, partition.log_end_offset) == (500, 500, 500)


def test_the_high_watermark_never_lies_below_the_start_of_the_log() -> None:
    partition = Partition(1)
    partition.restored(4, 0, 10)

    partition.log_start_moved(3)
    assert partition.high_watermark == 4
    partition.log_start_moved(6)
    assert partition.high_watermark == partition.log_start_offset == 6


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happens_the_rules_hold(seed: int) -> None:
    """Random events for one leader: the high watermark never falls and never passes a maximal-ISR member."""
    rng = random.Random(seed)
    replicas = (1, 2, 3)
    partition = leading(
        isr=(1, *rng.sample((2, 3), rng.randrange(3))), replicas=replicas, min_isr=rng.choice((1, 2))
    )
    log_ends, now_ms, highest = {1: 0, 2: 0, 3: 0}, 0, 0
    in_flight: list[IsrProposed] = []
    for _ in range(60):
        now_ms += rng.randrange(LAG_MS // 2)
        event = rng.randrange(5)
        before = partition.high_watermark
        if event == 0:
            log_ends[1] += rng.randrange(5)
            effects = partition.appended(log_ends[1], now_ms)
        elif event in (1, 2):
            follower = rng.choice((2, 3))
            log_ends[follower] = rng.randrange(log_ends[follower], log_ends[1] + 1)
            effects = partition.fetched(follower, log_ends[follower], 0, now_ms)
        elif event == 3:
            effects = partition.shrink(now_ms)
        elif in_flight and rng.random() < 0.7:
            proposed = in_flight.pop()
            effects = partition.isr_answered(
                proposed.token, proposed.isr, partition.partition_epoch + 1, now_ms
            )
        else:
            effects = partition.isr_refused(in_flight.pop().token, now_ms) if in_flight else []
        in_flight += [one for one in effects if isinstance(one, IsrProposed)]

        assert len(in_flight) <= 1, seed
        assert partition.high_watermark >= before, seed
        for effect in effects:
            if isinstance(effect, HighWatermarkAdvanced):
                highest = effect.offset
                assert all(log_ends[member] >= highest for member in partition.maximal_isr), seed
        assert 1 in partition.isr, seed
        assert partition.high_watermark in (0, highest), seed
