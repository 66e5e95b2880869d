"""Admission of records: whether one may be sent, and whether on the fast path."""

from __future__ import annotations

import pytest

from ottla.producer import ProducerClosed, TransactionError, TransactionFailed
from ottla.producer.accumulator import Accumulator, Appender
from ottla.producer.append.record_admission import RecordAdmission
from ottla.producer.transactions.state import Phase, TransactionState


def appender() -> Appender:
    return Appender(
        Accumulator(
            batch_size=100, linger_ms=0, buffer_memory=1_000, max_record_size=100, monotonic_ms=lambda: 0.0
        )
    )


def is_fast(native: Appender) -> bool:
    return native.fast_path


def test_a_closed_gate_admits_nothing() -> None:
    native = appender()
    admission = RecordAdmission(native, has_fast_path=True)

    for _ in range(2):
        with pytest.raises(ProducerClosed):
            admission.check()
        assert not is_fast(native)
        admission.open()
        admission.check()
        assert is_fast(native)
        admission.close()


def test_the_fast_path_stays_closed_where_a_setting_needs_to_see_single_records() -> None:
    native = appender()
    admission = RecordAdmission(native, has_fast_path=False)

    admission.open()

    admission.check()
    assert not is_fast(native)


def test_a_transactional_producer_admits_records_inside_a_transaction_only() -> None:
    native, state = appender(), TransactionState(Phase.IDLE)
    admission = RecordAdmission(native, has_fast_path=True)

    admission.open(state)
    with pytest.raises(TransactionError, match="outside of a transaction"):
        admission.check()
    assert not is_fast(native)

    state.to(Phase.OPEN, "begin")
    admission.update()
    admission.check()
    assert is_fast(native)

    state.failed(ValueError("lost"))
    admission.update()
    with pytest.raises(TransactionFailed, match="only abort: lost"):
        admission.check()
    assert not is_fast(native)
