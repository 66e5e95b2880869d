import pytest

from ottla.broker.transactions.driver_testing import TIMEOUT_MS, A, B, TransactionDriver
from ottla.broker.transactions.events import (
    LAST_EPOCH,
    NO_PRODUCER,
    PREPARED,
    CheckExpiration,
    CheckTimeout,
    Complete,
    MarkersWritten,
    Producer,
    Result,
    TransactionSnapshot,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import replace

FENCED, BUSY = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


# ---- InitProducerId


def test_a_new_id_gets_a_new_producer_id_with_epoch_0() -> None:
    driver = TransactionDriver()

    producer = driver.initialized()

    assert producer == Producer(100, 0)
    assert driver.snapshot == TransactionSnapshot(
        producer=producer, timeout_ms=TIMEOUT_MS, state=TransactionState.EMPTY, updated_ms=1_000
    )


def test_the_next_producer_gets_the_next_epoch() -> None:
    driver = TransactionDriver()

    assert [driver.initialized().epoch for _ in range(3)] == [0, 1, 2]


def test_nothing_is_given_out_before_its_record_is_committed() -> None:
    driver = TransactionDriver()
    driver.hold = True

    first, second = driver.initialize(), driver.initialize()

    assert first not in driver.answers
    assert driver.error(second) is BUSY
    driver.written()
    assert driver.answers[first].producer == Producer(100, 0)


def test_a_failed_write_gives_out_nothing_and_may_be_repeated() -> None:
    driver = TransactionDriver()
    driver.hold = True
    failed = driver.initialize()

    driver.written(UNAVAILABLE)

    assert driver.answers[failed] == Result(UNAVAILABLE, NO_PRODUCER)
    driver.hold = False
    assert driver.initialized().epoch == 0


def test_a_producer_that_goes_on_after_an_error_gets_the_next_epoch() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()

    assert driver.initialized(expected=producer) == Producer(producer.id, 1)


def test_a_repeated_request_to_go_on_gets_the_same_answer() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()

    assert driver.initialized(expected=producer) == driver.initialized(expected=producer)


@pytest.mark.parametrize("named", [Producer(100, 7), Producer(99, 1), Producer(100, 0)])
def test_a_producer_that_was_replaced_cannot_go_on(named: Producer) -> None:
    driver = TransactionDriver()
    for _ in range(3):
        driver.initialized()

    assert driver.error(driver.initialize(expected=named)) is FENCED


def test_a_fenced_producer_does_not_abort_its_successors_transaction() -> None:
    driver = TransactionDriver()
    fenced = driver.initialized()
    producer = driver.ongoing()

    assert driver.error(driver.initialize(expected=fenced)) is FENCED
    assert driver.state is TransactionState.ONGOING
    assert driver.error(driver.end(producer)) is ErrorCode.NONE


def test_an_exhausted_epoch_takes_a_new_producer_id() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()
    driver.transaction.replay(replace(driver.snapshot, producer=Producer(producer.id, LAST_EPOCH - 1)))

    exhausted = driver.snapshot.producer
    following = driver.initialized(expected=exhausted)

    assert following == Producer(101, 0)
    assert driver.initialized(expected=exhausted) == following, "the answer was lost"
    assert driver.error(driver.initialize(expected=Producer(producer.id, 5))) is FENCED


def test_a_producer_that_was_fenced_with_the_last_epoch_stays_fenced() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()
    driver.transaction.replay(replace(driver.snapshot, producer=Producer(producer.id, LAST_EPOCH)))

    assert driver.error(driver.initialize(expected=Producer(producer.id, LAST_EPOCH - 1))) is FENCED
    assert driver.initialized() == Producer(101, 0)


def test_a_new_producer_aborts_the_open_transaction_in_a_newer_epoch() -> None:
    driver = TransactionDriver()
    fenced = driver.ongoing()

    asked = driver.initialize()

    assert driver.error(asked) is BUSY
    assert driver.markers == [(Producer(fenced.id, 1), False, frozenset({A, B}))]
    assert driver.error(driver.end(fenced)) is FENCED
    assert driver.error(driver.initialize()) is BUSY
    driver.step(MarkersWritten(frozenset({A, B})))
    assert driver.initialized() == Producer(fenced.id, 2)


def test_a_fence_that_was_not_written_leaves_the_transaction_open() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.hold = True
    asked = driver.initialize()

    driver.written(UNAVAILABLE)

    assert driver.error(asked) is UNAVAILABLE
    assert driver.markers == []
    driver.hold = False
    assert driver.error(driver.end(producer)) is ErrorCode.NONE


# ---- AddPartitionsToTxn


def test_the_first_partitions_begin_the_transaction() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()
    driver.now_ms = 5_000

    driver.add(producer, A)
    driver.now_ms = 6_000
    driver.add(producer, B)

    assert (driver.state, driver.snapshot.partitions) == (TransactionState.ONGOING, frozenset({A, B}))
    assert (driver.snapshot.started_ms, driver.snapshot.updated_ms) == (5_000, 6_000)


def test_partitions_that_are_added_again_are_not_written_again() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing(A)
    length = len(driver.log)

    assert driver.error(driver.add(producer, A)) is ErrorCode.NONE
    assert len(driver.log) == length


def test_a_transaction_after_another_has_its_own_partitions_only() -> None:
    driver = TransactionDriver()
    producer = driver.completed()

    driver.add(producer, A)

    assert driver.snapshot.partitions == {A}


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (Producer(99, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Producer(100, 1), FENCED),
        (Producer(100, -1), FENCED),
    ],
)
def test_another_producer_neither_adds_nor_ends(producer: Producer, error: ErrorCode) -> None:
    driver = TransactionDriver()
    driver.ongoing()

    assert driver.error(driver.add(producer, A)) is error
    assert driver.error(driver.end(producer)) is error


def test_requests_while_something_is_written_are_to_be_repeated() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing(A)
    driver.hold = True
    first = driver.add(producer, B)

    assert driver.error(driver.add(producer, A)) is BUSY
    assert driver.error(driver.end(producer)) is BUSY
    assert driver.error(driver.initialize()) is BUSY
    driver.written()
    assert driver.error(first) is ErrorCode.NONE


# ---- verification


def test_partitions_are_verified_by_what_is_committed() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing(A)
    driver.hold = True
    driver.add(producer, B)

    verify = driver.transaction.verify

    assert verify(producer, [A, B]) == {A: ErrorCode.NONE, B: ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(Producer(producer.id, 1), [A]) == {A: FENCED}
    assert verify(Producer(99, 0), [A]) == {A: ErrorCode.INVALID_PRODUCER_ID_MAPPING}


@pytest.mark.parametrize("commit", [True, False])
def test_nothing_is_verified_once_the_end_is_decided(commit: bool) -> None:
    driver = TransactionDriver()
    producer = driver.ongoing(A)
    driver.end(producer, commit=commit)

    assert driver.transaction.verify(producer, [A]) == {A: BUSY}
    driver.step(MarkersWritten(frozenset({A})))
    assert driver.transaction.verify(producer, [A]) == {A: ErrorCode.TRANSACTION_ABORTABLE}


# ---- the end


@pytest.mark.parametrize("commit", [True, False])
def test_markers_follow_the_committed_decision_and_completion_the_last_marker(commit: bool) -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.hold = True
    ended = driver.end(producer, commit=commit)
    assert driver.markers == []

    driver.hold = False
    driver.written()
    assert driver.error(ended) is ErrorCode.NONE
    assert driver.markers == [(producer, commit, frozenset({A, B}))]
    driver.step(MarkersWritten(frozenset({A})))
    assert driver.state in PREPARED
    driver.step(MarkersWritten(frozenset({B})))

    complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
    assert (driver.state, driver.snapshot.partitions) == (complete, frozenset())


@pytest.mark.parametrize("commit", [True, False])
def test_a_repeated_end_is_answered_alike_and_the_other_end_is_refused(commit: bool) -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.end(producer, commit=commit)

    assert driver.error(driver.end(producer, commit=commit)) is BUSY
    driver.step(MarkersWritten(frozenset({A, B})))
    assert driver.error(driver.end(producer, commit=commit)) is ErrorCode.NONE
    assert driver.error(driver.end(producer, commit=not commit)) is ErrorCode.INVALID_TXN_STATE


def test_nothing_ends_where_nothing_began() -> None:
    driver = TransactionDriver()
    producer = driver.initialized()

    assert driver.error(driver.end(producer)) is ErrorCode.INVALID_TXN_STATE


def test_a_decision_that_was_not_written_sends_no_markers() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.hold = True
    ended = driver.end(producer)

    driver.written(UNAVAILABLE)

    assert (driver.error(ended), driver.markers) == (UNAVAILABLE, [])
    assert driver.state is TransactionState.ONGOING


def test_a_completion_that_was_not_written_is_written_later() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.end(producer)
    driver.hold = True
    driver.step(MarkersWritten(frozenset({A, B})))

    driver.written(UNAVAILABLE)

    assert driver.completes_later
    driver.hold = False
    driver.step(Complete())
    assert driver.state is TransactionState.COMPLETE_COMMIT


# ---- time


def test_a_transaction_is_aborted_after_its_timeout_and_not_before() -> None:
    driver = TransactionDriver()
    producer = driver.ongoing()
    driver.now_ms += TIMEOUT_MS
    driver.step(CheckTimeout())
    assert driver.markers == []

    driver.now_ms += 1
    driver.step(CheckTimeout())

    assert driver.markers == [(Producer(producer.id, 1), False, frozenset({A, B}))]
    assert driver.error(driver.end(producer)) is FENCED


def test_an_id_that_nobody_uses_is_removed() -> None:
    driver = TransactionDriver()
    driver.completed()
    driver.now_ms += 10_000
    driver.step(CheckExpiration(10_001))
    assert driver.log[-1] is not None

    driver.step(CheckExpiration(10_000))

    assert driver.log[-1] is None


def test_an_open_transaction_is_never_removed() -> None:
    driver = TransactionDriver()
    driver.ongoing()
    driver.now_ms += 10**9

    driver.step(CheckExpiration(1))

    assert driver.log[-1] is not None
