from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.append.rules import Appended
from ottla.broker.log.log import AppendOrigin, Log
from ottla.broker.log.recovery.producer_snapshots import EARLIER_BATCHES
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.log.testing import append, commit, idempotent, log_in, truncate_to
from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.protocol.records import (
    ControlType,
    end_transaction_marker,
    read_end_transaction_marker,
    read_header,
)
from ottla.protocol.storage.checkpoints import EpochStart

AT = Path("/data")


# ---- leader epochs


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(*one) for one in entries)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),  # nothing was asked
        (9, (-1, -1)),  # newer than all
        (7, (7, 100)),  # the newest ends with the log
        (4, (4, 50)),
        (5, (4, 50)),  # not led here: the one below, where it ends
        (1, (1, 10)),  # older than all
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(asked: int, answer: tuple[int, int]) -> None:
    assert epochs((2, 10), (4, 20), (7, 50)).end_offset_for(asked, 100) == answer


def test_an_epoch_without_records_is_replaced() -> None:
    known = epochs((1, 0), (2, 10))
    known.assign(3, 10)
    known.assign(3, 15)

    assert known.entries == (EpochStart(1, 0), EpochStart(3, 10))
    assert [known.epoch_for(offset) for offset in (0, 9, 10, 99)] == [1, 1, 3, 3]


def test_epochs_are_truncated_at_both_ends() -> None:
    known = epochs((1, 0), (2, 10), (3, 20))
    known.truncate_from_start(15)
    known.truncate_from_end(20)

    assert known.entries == (EpochStart(2, 15),)
    assert known.epoch_for(3) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=20))
def test_epochs_and_start_offsets_always_rise(assigned: list[tuple[int, int]]) -> None:
    known = epochs(*assigned)
    entries = known.entries

    assert all(one.epoch < other.epoch for one, other in pairwise(entries))
    assert all(one.start_offset < other.start_offset for one, other in pairwise(entries))
    if assigned:
        assert known.latest >= 0


# ---- producers


def marker(kind: ControlType, *, coordinator_epoch: int = 0, epoch: int = 0) -> bytes:
    return end_transaction_marker(
        kind, producer_id=7, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, timestamp_ms=5
    )


def end(log: Log, kind: ControlType) -> None:
    log.append(marker(kind), leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    commit(log)


def test_an_open_transaction_holds_the_last_stable_offset() -> None:
    log = log_in(AT)
    append(log, b"before")
    log.append(idempotent(0, 2, transactional=True), leader_epoch=0, now_ms=0)
    append(log, b"after")

    assert (log.last_stable_offset, log.high_watermark) == (1, 4)
    end(log, ControlType.COMMIT)
    assert log.last_stable_offset == log.log_end_offset == 5
    assert log.aborted_transactions(0, 5) == []


def test_a_marker_above_the_high_watermark_holds_the_last_stable_offset() -> None:
    log = log_in(AT)
    log.append(idempotent(0, transactional=True), leader_epoch=0, now_ms=0)
    log.append(marker(ControlType.COMMIT), leader_epoch=0, now_ms=0, origin=AppendOrigin.COORDINATOR)
    commit(log, 1)

    assert log.last_stable_offset == 0
    commit(log, 2)
    assert log.last_stable_offset == 2


def test_transactions_below_the_high_watermark_are_forgotten_by_a_log_that_nobody_reads() -> None:
    log = log_in(AT)
    for number in range(10):
        log.append(idempotent(number, transactional=True), leader_epoch=0, now_ms=0)
        end(log, ControlType.COMMIT)
        log.watermark.offset = log.log_end_offset - 1  # the marker is not replicated yet

    assert [one.last_offset for one in log.producers.unreplicated] == [17, 19]


def test_the_earliest_of_open_transactions_holds_the_last_stable_offset_after_a_restart() -> None:
    states = ProducerStates()
    for offset, producer_id in enumerate([9, 7, 8]):
        states.apply(read_header(idempotent(0, producer_id=producer_id, transactional=True)), offset)

    restored = ProducerStates(reversed(states.entries()), 3)

    assert (states.first_unstable_offset(3), restored.first_unstable_offset(3)) == (0, 0)


def test_aborted_transactions_of_a_range_are_found() -> None:
    log = log_in(AT, segment_bytes=250)
    log.append(idempotent(0, 2, transactional=True), leader_epoch=0, now_ms=0)
    append(log, b"x" * 100)
    end(log, ControlType.ABORT)
    append(log, b"x" * 100)

    told = log.aborted_transactions(0, 5)
    assert [(one.producer_id, one.first_offset, one.last_offset) for one in told] == [(7, 0, 3)]
    assert log.aborted_transactions(4, 5) == []
    log.close()
    assert log.aborted_transactions(0, 5) == told


def test_records_outside_of_the_open_transaction_are_refused() -> None:
    log = log_in(AT)
    log.append(idempotent(0, transactional=True), leader_epoch=0, now_ms=0)

    with pytest.raises(InvalidTxnState):
        log.append(idempotent(1), leader_epoch=0, now_ms=0)


def test_a_marker_of_an_earlier_coordinator_is_fenced() -> None:
    states = ProducerStates()
    states.apply(read_header(idempotent(0, transactional=True)), 0)
    data = marker(ControlType.COMMIT, coordinator_epoch=5)
    ended = read_end_transaction_marker(data)
    assert ended is not None
    states.complete(read_header(data), 1, ended, committed=True)

    with pytest.raises(TransactionCoordinatorFenced):
        states.check_marker(read_header(data), ended._replace(coordinator_epoch=4))
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(read_header(marker(ControlType.ABORT, epoch=-1)), ended)


def test_producers_that_were_silent_for_long_are_forgotten_unless_in_a_transaction() -> None:
    states = ProducerStates()
    states.apply(read_header(idempotent(0, timestamp_ms=100)), 0)
    states.apply(read_header(idempotent(0, producer_id=8, transactional=True, timestamp_ms=100)), 1)

    assert states.expire(199, 100) == 0
    assert states.expire(200, 100) == 1
    assert [one.producer_id for one in states] == [8]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=30))
def test_producers_continue_from_a_snapshot(batches: list[tuple[int, int, bool]]) -> None:
    states, offset, sequences = ProducerStates(), 0, dict.fromkeys(range(4), 0)
    for producer_id, count, transactional in batches:
        header = read_header(
            idempotent(sequences[producer_id], count, producer_id=producer_id, transactional=transactional)
        )
        if transactional or producer_id not in {
            one.producer_id for one in states if one.transaction_start >= 0
        }:
            states.apply(header, offset)
            offset += count
            sequences[producer_id] += count

    restored = ProducerStates(states.entries(), offset)

    assert restored.entries() == states.entries()
    assert restored.first_unstable_offset(0) == states.first_unstable_offset(0)
    for producer_id, sequence in sequences.items():
        restored.check([read_header(idempotent(sequence, producer_id=producer_id, transactional=True))])


# ---- retries after a restart


def sent(log: Log, sequence: int, count: int = 1, **who: int) -> Appended:
    return log.append(idempotent(sequence, count, **who), leader_epoch=0, now_ms=0)


def restarted(log: Log, **settings: Any) -> Log:
    """The log after a stop in good order."""
    commit(log)
    log.close()
    again = log_in(AT, log.files, **settings)
    commit(again)
    return again


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 200])
def test_unanswered_batches_are_known_after_a_restart(count: int, segment_bytes: int) -> None:
    log = log_in(AT, segment_bytes=segment_bytes)
    placed = [sent(log, number * count, count) for number in range(8)]

    log = restarted(log, segment_bytes=segment_bytes)

    for number in range(3, 8):
        again = sent(log, number * count, count)
        assert (again.duplicate, again.base_offset) == (True, placed[number].base_offset)
    assert not sent(log, 8 * count).duplicate


def test_batches_of_others_and_of_an_earlier_epoch_are_not_taken_for_unanswered_ones() -> None:
    log = log_in(AT)
    sent(log, 0, epoch=0)
    for number in range(3):
        sent(log, number, epoch=1)
        sent(log, number, producer_id=8)
        append(log, b"of nobody")

    log = restarted(log)

    assert [sent(log, number, epoch=1).duplicate for number in range(4)] == [True] * 3 + [False]
    assert [sent(log, number, producer_id=8).duplicate for number in range(4)] == [True] * 3 + [False]
    with pytest.raises(InvalidProducerEpoch):
        sent(log, 0, epoch=0)


def test_unanswered_batches_are_known_after_a_truncation() -> None:
    log = log_in(AT)
    placed = [sent(log, number) for number in range(4)]
    log = restarted(log)
    sent(log, 4)

    truncate_to(log, 4)

    assert sent(log, 2).base_offset == placed[2].base_offset
    assert not sent(log, 4).duplicate


def test_a_restart_looks_back_over_a_bounded_number_of_batches() -> None:
    log = log_in(AT, index_interval_bytes=200)
    sent(log, 0)
    sent(log, 1)
    for number in range(EARLIER_BATCHES + 20):
        sent(log, number, producer_id=8)
    sent(log, 2)

    log = restarted(log)

    assert sent(log, 2).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        sent(log, 1)
