"""The parts of transactions that a cleaning may drop, and when."""

from __future__ import annotations

import pytest

from ottla.broker.log.compaction.cleaned_transactions import CleanedTransactions
from ottla.broker.log.compaction.compaction_rules import emptied
from ottla.broker.log.testing import batch, idempotent
from ottla.protocol.records import ControlType, CorruptRecords, end_transaction_marker, read_header
from ottla.protocol.storage.indexes import AbortedTransaction

ABORTED = AbortedTransaction(7, 10, 12, 13)


def data(base_offset: int, *, producer_id: int = 7, transactional: bool = True) -> bytes:
    return idempotent(0, producer_id=producer_id, base_offset=base_offset, transactional=transactional)


def marker(kind: ControlType, base_offset: int, producer_id: int = 7) -> bytes:
    return end_transaction_marker(
        kind,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
        timestamp_ms=1,
        base_offset=base_offset,
    )


def is_aborted(pass_: CleanedTransactions, one: bytes) -> bool:
    return pass_.is_aborted(read_header(one))


def is_empty_at(pass_: CleanedTransactions, one: bytes) -> bool:
    return pass_.is_empty_at(read_header(one), one)


def test_batches_of_an_aborted_transaction_are_dropped_and_its_marker_is_kept_with_them() -> None:
    one = CleanedTransactions([ABORTED])

    assert not is_aborted(one, data(8, producer_id=9))
    assert is_aborted(one, data(10))
    assert not is_aborted(one, data(11, producer_id=9))
    assert not is_aborted(one, data(11, transactional=False))
    assert not is_empty_at(one, marker(ControlType.ABORT, 12))
    assert one.take_index() == [ABORTED]
    assert one.take_index() == []
    assert not is_aborted(one, data(13)), "the next transaction of the producer"


@pytest.mark.parametrize("kind", ControlType)
def test_a_marker_without_batches_of_its_transaction_is_dropped(kind: ControlType) -> None:
    one = CleanedTransactions([ABORTED] if kind is ControlType.ABORT else [])

    assert is_empty_at(one, marker(kind, 12))
    assert one.take_index() == []


def test_the_marker_of_a_committed_transaction_is_kept_with_its_batches() -> None:
    one = CleanedTransactions([])

    assert not is_aborted(one, data(10))
    assert not is_empty_at(one, marker(ControlType.COMMIT, 12))
    assert is_empty_at(one, marker(ControlType.COMMIT, 13)), "another one, of which nothing is left"


def test_an_abort_marker_that_no_index_knows_is_dropped_as_kafka_does() -> None:
    one = CleanedTransactions([])

    assert not is_aborted(one, data(10))
    assert is_empty_at(one, marker(ControlType.ABORT, 12))
    assert is_empty_at(one, marker(ControlType.COMMIT, 13))


def test_control_batches_that_end_no_transaction() -> None:
    one = CleanedTransactions([])
    of_another_type = bytearray(marker(ControlType.COMMIT, 12))
    of_another_type[61 + 8] = 5

    assert is_empty_at(one, emptied(marker(ControlType.COMMIT, 12)))
    assert not is_empty_at(one, bytes(of_another_type))
    with pytest.raises(CorruptRecords):
        is_empty_at(one, batch(b"", control=True))


def test_a_transaction_that_ended_before_the_first_batch_drops_nothing() -> None:
    one = CleanedTransactions([ABORTED])

    assert not is_aborted(one, data(13))
    assert not is_empty_at(one, marker(ControlType.COMMIT, 14))
