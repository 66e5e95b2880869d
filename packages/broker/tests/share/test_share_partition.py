"""One share partition: acquisition, acknowledgement, locks, dead letters and the start offset.

The module has over 500 lines because the transitions of one record stand together, as in the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.broker.share.in_flight import RecordState, StateBatch
from ottla.broker.share.partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquisition,
    LogBatch,
    ShareLimits,
    SharePartition,
    StateWrite,
)
from ottla.protocol.errors import InvalidRecordState, InvalidRequest

AVAILABLE, ACKED, ARCHIVED = (
    int(state) for state in (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
)
LOCK_MS = 30_000


def log_of(*sizes: int, start: int = 0) -> list[LogBatch]:
    """A log of batches with these numbers of records."""
    batches = []
    for size in sizes:
        batches.append(LogBatch(start, start + size - 1))
        start += size
    return batches


def fetch(
    partition: SharePartition,
    log: Sequence[LogBatch],
    *,
    member: str = "a",
    size: int = 500,
    most: int = 500,
    exact: bool = False,
    now_ms: float = 0,
    aborted: Sequence[tuple[int, int]] = (),
) -> list[tuple[int, int, int]]:
    """Fetch as a leader does: read the log where the partition wants it, and acquire."""
    offset = partition.next_fetch_offset()
    read = [batch for batch in log if batch.last_offset >= offset]
    asked = Acquisition(member, offset, size, most, exact)
    return [(*piece,) for piece in partition.acquire(asked, read, now_ms, aborted)]


def acknowledge(
    partition: SharePartition, first: int, last: int, *types: int, member: str = "a", now_ms: float = 0
) -> StateWrite | None:
    return partition.acknowledge(member, [Acknowledgement(first, last, types)], now_ms)


def finish(partition: SharePartition, write: StateWrite | None, now_ms: float = 0) -> bool:
    assert write is not None
    return partition.persisted(write.number, now_ms)


def states(partition: SharePartition) -> list[tuple[int, int, str, int]]:
    return [(run.first, run.last, run.state.name, run.delivery_count) for run in partition.runs()]


def test_records_are_acquired_from_the_start_offset_and_finished_in_order() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(10)) == [(0, 9, 1)]
    write = acknowledge(partition, 0, 9, ACCEPT)
    assert write is not None
    assert write.batches == (StateBatch(0, 9, ACKED, 1),)
    assert (partition.start_offset, partition.delivery_complete_count) == (0, 10)

    assert finish(partition, write)
    assert (partition.start_offset, partition.next_offset, partition.in_flight) == (10, 10, 0)
    assert states(partition) == []


def test_two_members_never_hold_the_same_record() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(10, 10), most=10) == [(0, 9, 1)]
    assert fetch(partition, log_of(10, 10), member="b") == [(10, 19, 1)]
    assert fetch(partition, log_of(10, 10), member="c") == []


def test_acquired_batches_end_where_batches_of_the_log_end() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(3, 3, 3, 3), size=5) == [(0, 5, 1), (6, 11, 1)]


def test_no_more_is_read_than_an_acquisition_needs() -> None:
    partition = SharePartition(0, limits=ShareLimits(max_record_locks=30))
    log = log_of(10, 10, 10, 10)
    assert partition.read_end(5) == 4

    assert fetch(partition, log, most=10) == [(0, 9, 1)]
    assert fetch(partition, log, most=10, member="b") == [(10, 19, 1)]
    assert partition.read_end(500) == 29  # the limit of locks

    finish(partition, acknowledge(partition, 0, 4, RELEASE))
    assert partition.read_end(5) == 9  # a batch in flight is read whole
    assert partition.read_end(8) == 22  # what another member holds does not count

    assert fetch(partition, log, most=20, member="c") == [(0, 4, 2), (20, 29, 1)]
    assert partition.read_end(500) == 29  # at the limit only what is in flight


def test_the_end_of_a_read_lies_in_a_gap_that_holds_enough() -> None:
    partition = SharePartition(0, [StateBatch(10, 19, ACKED, 1)])

    assert partition.read_end(4) == 3
    assert partition.read_end(15) == 24


def test_batch_optimized_acquires_the_whole_batch_of_the_last_record() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(10, 10), most=4) == [(0, 9, 1)]


def test_record_limit_acquires_exactly_as_many_records_as_asked_for() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(10, 10), most=4, exact=True) == [(0, 3, 1)]
    assert fetch(partition, log_of(10, 10), most=4, exact=True, member="b") == [(4, 7, 1)]
    assert fetch(partition, log_of(10, 10), most=4, exact=True, member="c") == [(8, 9, 1), (10, 11, 1)]
    assert partition.next_offset == 20


def test_a_released_record_is_delivered_again_with_a_higher_count() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))

    write = acknowledge(partition, 0, 9, RELEASE)
    assert fetch(partition, log_of(10), member="b") == []
    assert finish(partition, write)

    assert fetch(partition, log_of(10), member="b") == [(0, 9, 2)]
    assert write is not None
    assert write.batches == (StateBatch(0, 9, AVAILABLE, 1),)


def test_types_for_each_offset_split_a_batch() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5))

    write = acknowledge(partition, 0, 4, ACCEPT, ACCEPT, RELEASE, REJECT, GAP)
    assert write is not None
    assert write.batches == (
        StateBatch(0, 1, ACKED, 1), StateBatch(2, 2, AVAILABLE, 1), StateBatch(3, 4, ARCHIVED, 1),
    )  # fmt: skip
    finish(partition, write)

    assert partition.start_offset == 2
    assert fetch(partition, log_of(5), member="b") == [(2, 2, 2)]
    finish(partition, acknowledge(partition, 2, 2, ACCEPT, member="b"))
    assert (partition.start_offset, partition.in_flight) == (5, 0)


def test_a_failed_write_gives_the_records_back_to_their_member() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))
    write = acknowledge(partition, 0, 4, ACCEPT)
    assert write is not None

    assert not partition.persisted(write.number, 10, failed=True)

    assert partition.held_by("a") == 10
    assert states(partition) == [(0, 9, "ACQUIRED", 1)]
    finish(partition, acknowledge(partition, 0, 9, ACCEPT))
    assert partition.start_offset == 10


def test_a_failed_write_gives_records_to_nobody_when_their_lock_is_over() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))
    write = acknowledge(partition, 0, 9, ACCEPT)
    assert write is not None

    assert partition.expire(LOCK_MS) is None
    assert partition.persisted(write.number, LOCK_MS, failed=True)

    assert states(partition) == [(0, 9, "AVAILABLE", 1)]


def test_a_lock_ends_after_its_time_and_its_record_is_available() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5, 5), most=5, now_ms=0)
    fetch(partition, log_of(5, 5), most=5, member="b", now_ms=100)
    assert partition.next_deadline_ms == LOCK_MS

    assert partition.expire(LOCK_MS - 1) is None
    write = partition.expire(LOCK_MS)

    assert write is not None
    assert (write.number, write.batches) == (0, (StateBatch(0, 4, AVAILABLE, 1),))
    assert partition.next_deadline_ms == LOCK_MS + 100
    assert fetch(partition, log_of(5, 5), member="c") == [(0, 4, 2)]


def test_an_acknowledgement_after_the_lock_is_refused() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5))
    partition.expire(LOCK_MS)

    with pytest.raises(InvalidRecordState):
        acknowledge(partition, 0, 4, ACCEPT)


def test_a_renewed_lock_ends_later() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5))

    assert acknowledge(partition, 0, 1, RENEW, now_ms=20_000) is None
    write = partition.expire(LOCK_MS)

    assert write is not None
    assert write.batches == (StateBatch(2, 4, AVAILABLE, 1),)
    assert partition.next_deadline_ms == 20_000 + LOCK_MS
    finish(partition, acknowledge(partition, 0, 1, ACCEPT, now_ms=40_000))
    assert partition.start_offset == 2


def test_a_renewal_is_refused_where_the_group_does_not_allow_it() -> None:
    partition = SharePartition(0, limits=ShareLimits(renew_enabled=False))
    fetch(partition, log_of(5))

    with pytest.raises(InvalidRecordState, match="not enabled"):
        acknowledge(partition, 0, 4, RENEW)


def test_a_record_is_archived_after_its_last_delivery() -> None:
    partition = SharePartition(0, limits=ShareLimits(delivery_count_limit=2))
    for count in (1, 2):
        assert fetch(partition, log_of(1)) == [(0, 0, count)]
        finish(partition, acknowledge(partition, 0, 0, RELEASE))

    assert partition.start_offset == 1
    assert fetch(partition, log_of(1)) == []


def test_an_ended_lock_archives_a_record_at_the_delivery_limit() -> None:
    partition = SharePartition(0, limits=ShareLimits(delivery_count_limit=1))
    fetch(partition, log_of(3))

    write = partition.expire(LOCK_MS)

    assert write is not None
    assert write.batches == (StateBatch(0, 2, ARCHIVED, 1),)
    assert partition.start_offset == 3


def test_records_that_were_often_delivered_come_in_few_and_alone_at_the_end() -> None:
    partition = SharePartition(0)
    log = log_of(16)
    sizes = []
    for _ in range(5):
        pieces = fetch(partition, log)
        sizes.append(sum(last - first + 1 for first, last, _ in pieces))
        finish(partition, partition.release("a"))

    assert sizes == [16, 16, 16, 8, 1]


@pytest.mark.parametrize(
    ("first", "last", "error"),
    [(10, 12, InvalidRequest), (3, 12, InvalidRequest), (2**63 - 1, 2**63 - 1, InvalidRequest)],
)
def test_offsets_that_were_never_acquired_are_refused(first: int, last: int, error: type[Exception]) -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))
    before = states(partition)

    with pytest.raises(error):
        acknowledge(partition, first, last, ACCEPT)

    assert states(partition) == before


def test_an_acknowledgement_of_an_empty_partition_is_refused() -> None:
    with pytest.raises(InvalidRecordState):
        acknowledge(SharePartition(5), 5, 2**63 - 1, ACCEPT)


def test_a_second_acknowledgement_of_an_offset_is_refused_and_the_first_of_the_request_undone() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))

    with pytest.raises(InvalidRecordState):
        partition.acknowledge("a", [Acknowledgement(0, 4, [ACCEPT]), Acknowledgement(4, 9, [ACCEPT])], 0)

    assert states(partition) == [(0, 9, "ACQUIRED", 1)]


def test_another_member_may_not_acknowledge() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))

    with pytest.raises(InvalidRecordState, match="owner"):
        acknowledge(partition, 0, 9, ACCEPT, member="b")


def test_offsets_below_the_start_offset_are_acknowledged_already() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))
    assert partition.log_start_moved(6)

    assert acknowledge(partition, 0, 5, ACCEPT) is None
    write = acknowledge(partition, 4, 9, ACCEPT)

    assert write is not None
    assert write.batches == (StateBatch(6, 9, ACKED, 1),)
    finish(partition, write)
    assert partition.start_offset == 10


def test_the_log_start_moves_beyond_everything_in_flight() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(10))
    write = acknowledge(partition, 0, 4, ACCEPT)

    assert partition.log_start_moved(50)
    finish(partition, write)

    assert (partition.start_offset, partition.next_offset, states(partition)) == (50, 50, [])
    assert fetch(partition, log_of(5, start=50)) == [(50, 54, 1)]


def test_the_limit_of_locks_stops_new_records_and_not_those_in_flight() -> None:
    partition = SharePartition(0, limits=ShareLimits(max_record_locks=10))
    log = log_of(5, 5, 5)
    assert fetch(partition, log) == [(0, 9, 1)]
    assert not partition.can_acquire()
    assert fetch(partition, log, member="b") == []

    finish(partition, acknowledge(partition, 0, 4, RELEASE))
    assert partition.can_acquire()
    assert fetch(partition, log, member="b") == [(0, 4, 2)]


def test_offsets_that_compaction_removed_are_finished() -> None:
    partition = SharePartition(0)
    assert fetch(partition, [LogBatch(4, 9)]) == [(4, 9, 1)]
    assert partition.start_offset == 4

    assert fetch(partition, [LogBatch(4, 9), LogBatch(20, 29)], member="b") == [(20, 29, 1)]
    finish(partition, acknowledge(partition, 4, 9, ACCEPT))
    assert partition.start_offset == 20


def test_a_released_record_that_compaction_removed_is_finished() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5, 5))
    finish(partition, acknowledge(partition, 0, 9, RELEASE))

    assert fetch(partition, [LogBatch(5, 9)], member="b") == [(5, 9, 2)]
    assert partition.start_offset == 5


def test_records_of_aborted_transactions_are_finished_and_not_delivered() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(3, 3, 3), aborted=[(3, 5)]) == [(0, 2, 1), (6, 8, 1)]
    finish(partition, acknowledge(partition, 0, 2, ACCEPT))
    assert partition.start_offset == 6


def test_a_batch_that_is_only_aborted_moves_the_start_offset() -> None:
    partition = SharePartition(0)

    assert fetch(partition, log_of(3), aborted=[(0, 2)]) == []
    assert partition.start_offset == 3


def test_a_loaded_partition_delivers_gaps_and_available_records_first() -> None:
    partition = SharePartition(
        10, [StateBatch(15, 19, ACKED, 1), StateBatch(25, 29, AVAILABLE, 2), StateBatch(30, 34, ARCHIVED, 5)]
    )
    log = log_of(5, 5, 5, 5, 5, 5, start=10)

    assert (partition.start_offset, partition.next_offset) == (10, 35)
    assert partition.next_fetch_offset() == 10
    assert fetch(partition, log) == [(10, 14, 1), (20, 24, 1), (25, 29, 3), (35, 39, 1)]
    finish(partition, acknowledge(partition, 10, 14, ACCEPT))
    assert partition.start_offset == 20


def test_a_gap_that_is_not_in_the_log_any_more_does_not_hold_the_start_offset() -> None:
    partition = SharePartition(10, [StateBatch(15, 19, ACKED, 1)])

    assert fetch(partition, [LogBatch(17, 24)]) == [(20, 24, 1)]
    assert partition.start_offset == 20


@pytest.mark.parametrize(
    "batches",
    [
        [StateBatch(3, 9, ACKED, 1)],
        [StateBatch(12, 11, ACKED, 1)],
        [StateBatch(12, 15, ACKED, 1), StateBatch(15, 16, ACKED, 1)],
        [StateBatch(12, 15, int(RecordState.ACQUIRED), 1)],
        [StateBatch(12, 15, 9, 1)],
    ],
)
def test_state_that_contradicts_itself_is_not_loaded(batches: list[StateBatch]) -> None:
    with pytest.raises(ValueError, match=r"contradict|acquired|9 is not"):
        SharePartition(10, batches)


def test_a_member_that_leaves_releases_only_its_own_records() -> None:
    partition = SharePartition(0)
    fetch(partition, log_of(5, 5), most=5)
    fetch(partition, log_of(5, 5), member="b")

    write = partition.release("a")
    assert write is not None
    assert write.batches == (StateBatch(0, 4, AVAILABLE, 1),)
    finish(partition, write)

    assert partition.held_by("b") == 5
    assert partition.release("a") is None


def test_acknowledgements_below_the_start_offset_are_not_gone_through() -> None:
    partition = SharePartition(100)
    given = [Acknowledgement(offset, offset + 1, [ACCEPT]) for offset in range(0, 200, 2)]

    assert partition.unfinished(given)[0] == (100, 101, [ACCEPT])
    assert partition.unfinished([Acknowledgement(98, 100, [ACCEPT])]) == [(98, 100, [ACCEPT])]
    assert not partition.unfinished(given[:50])


def test_alternating_acknowledgements_of_many_records_cost_little() -> None:
    partition = SharePartition(0, limits=ShareLimits(max_record_locks=10_000))
    fetch(partition, log_of(10_000), most=10_000, size=10_000)

    write = acknowledge(partition, 0, 9_999, *(ACCEPT, RELEASE) * 5_000)

    assert write is not None
    assert len(write.batches) == 10_000
    finish(partition, write)
    assert partition.next_fetch_offset() == 1
    assert sum(1 for _ in partition.runs()) == 9_999


# ---- dead letters


WITH_LETTERS = ShareLimits(dead_letters=True, delivery_count_limit=2)
ARCHIVING = int(RecordState.ARCHIVING)


def letters_of(partition: SharePartition) -> list[tuple[int, int, int, str]]:
    return [(first, last, count, reason.name) for first, last, count, reason in partition.take_letters()]


def test_a_rejected_record_is_a_dead_letter_once_that_is_persisted() -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(4))

    write = acknowledge(partition, 0, 3, ACCEPT, REJECT, GAP, ACCEPT)

    assert write is not None
    assert write.batches == (
        StateBatch(0, 0, ACKED, 1), StateBatch(1, 1, ARCHIVING, 1), StateBatch(2, 2, ARCHIVED, 1),
        StateBatch(3, 3, ACKED, 1),
    )  # fmt: skip
    assert letters_of(partition) == []
    finish(partition, write)
    assert letters_of(partition) == [(1, 1, 1, "REJECTED")]
    assert letters_of(partition) == []
    assert (partition.start_offset, partition.delivery_complete_count) == (1, 2)


def test_the_start_offset_passes_a_dead_letter_once_it_is_buried() -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(3))
    finish(partition, acknowledge(partition, 0, 2, REJECT))
    (letters,) = partition.take_letters()

    first = partition.buried(letters._replace(last_offset=1))

    assert first is not None
    assert first.number == 0
    assert first.batches == (StateBatch(0, 1, ARCHIVED, 1),)
    assert partition.start_offset == 2
    assert fetch(partition, log_of(3)) == []
    assert partition.buried(letters) is not None
    assert partition.start_offset == 3
    assert partition.buried(letters) is None


def test_a_failed_write_makes_no_dead_letter_and_gives_the_record_back() -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(1))
    write = acknowledge(partition, 0, 0, REJECT)
    assert write is not None

    partition.persisted(write.number, 1, failed=True)

    assert letters_of(partition) == []
    assert partition.held_by("a") == 1


@pytest.mark.parametrize("failed", [False, True])
def test_a_record_whose_last_lock_ends_is_a_dead_letter_whatever_becomes_of_the_write(failed: bool) -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(1))
    finish(partition, acknowledge(partition, 0, 0, RELEASE))
    fetch(partition, log_of(1))

    write = partition.expire(LOCK_MS)

    assert write is not None
    assert write.batches == (StateBatch(0, 0, ARCHIVING, 2),)
    assert letters_of(partition) == []
    partition.persisted(write.number, LOCK_MS, failed=failed)
    assert letters_of(partition) == [(0, 0, 2, "EXHAUSTED")]
    assert states(partition) == [(0, 0, "ARCHIVING", 2)]


def test_a_lock_that_ended_while_its_release_failed_makes_a_dead_letter_at_the_limit() -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(1))
    finish(partition, acknowledge(partition, 0, 0, RELEASE))
    fetch(partition, log_of(1))
    write = acknowledge(partition, 0, 0, ACCEPT)
    assert write is not None

    partition.persisted(write.number, LOCK_MS, failed=True)

    assert letters_of(partition) == [(0, 0, 2, "EXHAUSTED")]


@pytest.mark.parametrize(("count", "reason"), [(1, "REJECTED"), (2, "EXHAUSTED")])
def test_a_new_leader_hands_on_what_was_on_its_way(count: int, reason: str) -> None:
    partition = SharePartition(0, [StateBatch(0, 4, ARCHIVING, count)], WITH_LETTERS)

    assert letters_of(partition) == [(0, 4, count, reason)]
    assert (partition.start_offset, fetch(partition, log_of(5))) == (0, [])


def test_records_that_the_log_has_deleted_are_no_dead_letters() -> None:
    partition = SharePartition(0, limits=WITH_LETTERS)
    fetch(partition, log_of(2, 2))
    write = acknowledge(partition, 0, 3, REJECT)

    partition.log_start_moved(3)
    finish(partition, write)

    (letters,) = partition.take_letters()
    assert (letters.first_offset, letters.last_offset) == (3, 3)
    partition.log_start_moved(4)
    assert partition.buried(letters) is None
    assert partition.start_offset == 4


def test_letters_of_different_reasons_are_not_joined() -> None:
    partition = SharePartition(0, limits=ShareLimits(dead_letters=True, delivery_count_limit=1))
    fetch(partition, log_of(3))

    finish(partition, acknowledge(partition, 0, 2, REJECT, RELEASE, REJECT))

    assert letters_of(partition) == [(0, 0, 1, "REJECTED"), (1, 1, 1, "EXHAUSTED"), (2, 2, 1, "REJECTED")]
    assert states(partition) == [(0, 2, "ARCHIVING", 1)]
