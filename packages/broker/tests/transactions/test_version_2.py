"""Transactions of version 2 (KIP-890): each end raises the epoch, and brings the next one to the producer."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.transactions.driver_testing import A, B, TransactionDriver
from ottla.broker.transactions.events import (
    LAST_EPOCH,
    NO_PRODUCER,
    CheckTimeout,
    Producer,
    TransactionState,
)
from ottla.broker.transactions.records import TransactionRecord, decode_record, encode_record
from ottla.broker.transactions.testing import (
    ALL,
    MemoryCluster,
    described,
    initialized,
    leading,
    memory_store,
    until,
)
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import replace

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
COMMITTED = TransactionState.COMPLETE_COMMIT
ABORTED = TransactionState.COMPLETE_ABORT


@pytest.fixture
def driver() -> TransactionDriver:
    return TransactionDriver()


def end(driver: TransactionDriver, producer: Producer, *, commit: bool = True) -> ErrorCode:
    return driver.error(driver.end(producer, commit=commit, version=2))


def reload(driver: TransactionDriver) -> None:
    """Load the log by another coordinator, from its bytes."""
    loaded = Transaction("t")
    for snapshot in driver.log:
        stored = encode_record(TransactionRecord("t", snapshot))
        decoded = decode_record(stored.key, stored.value).snapshot
        assert decoded is not None
        loaded.replay(decoded)
    driver.transaction = loaded


def exhausted(driver: TransactionDriver) -> Producer:
    """Begin a producer in the last epoch that a client gets."""
    producer = driver.initialized()
    last = Producer(producer.id, LAST_EPOCH - 1)
    driver.log.append(replace(driver.snapshot, producer=last))
    driver.transaction.replay(replace(driver.snapshot, producer=last))
    return last


# ---- the epoch rises


@pytest.mark.parametrize(("commit", "state"), [(True, COMMITTED), (False, ABORTED)])
def test_each_end_raises_the_epoch_which_the_markers_have(
    driver: TransactionDriver, commit: bool, state: TransactionState
) -> None:
    first = driver.initialized()

    second = driver.raised(first, commit=commit)
    assert driver.markers == [(second, commit, frozenset({A, B}))]
    driver.marked()
    third = driver.raised(second, A, commit=commit)
    driver.marked()

    assert [first.epoch, second.epoch, third.epoch] == [0, 1, 2]
    assert {first.id, second.id, third.id} == {first.id}
    assert driver.state is state


def test_the_producer_of_an_ended_transaction_can_do_nothing_any_more(driver: TransactionDriver) -> None:
    first = driver.initialized()
    driver.raised(first)
    driver.marked()

    assert driver.error(driver.add(first, A, version=2)) is FENCED
    assert driver.error(driver.add(first, A)) is FENCED
    assert driver.error(driver.end(first)) is FENCED
    assert driver.transaction.verify(first, [A]) == {A: FENCED}


def test_the_next_transaction_waits_for_the_markers_of_the_last_one(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)

    assert driver.error(driver.add(second, A, version=2)) is CONCURRENT
    assert end(driver, second) is CONCURRENT
    assert driver.transaction.verify(second, [A]) == {A: CONCURRENT}

    driver.marked()
    assert driver.error(driver.add(second, A, version=2)) is NONE


def test_both_versions_take_turns_under_one_id(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)
    driver.marked()
    assert driver.error(driver.add(second, A)) is NONE
    assert driver.error(driver.end(second)) is NONE
    driver.marked()
    assert (driver.snapshot.producer, driver.snapshot.version) == (second, 0)

    third = driver.raised(second)

    assert third.epoch == 2


# ---- aborts without a partition


def test_an_abort_without_a_partition_raises_the_epoch_too(driver: TransactionDriver) -> None:
    first = driver.initialized()

    assert end(driver, first, commit=False) is NONE  # after InitProducerId
    driver.marked()
    second = driver.snapshot.producer
    assert end(driver, second, commit=False) is NONE  # after an abort
    driver.marked()
    third = driver.raised(driver.snapshot.producer)
    driver.marked()
    assert end(driver, third, commit=False) is NONE  # after a commit
    driver.marked()

    assert driver.state is ABORTED
    assert driver.snapshot.producer == Producer(first.id, 4)
    assert [partitions for _, _, partitions in driver.markers] == [
        frozenset(), frozenset(), frozenset({A, B}), frozenset(),
    ]  # fmt: skip


def test_a_commit_without_a_partition_is_refused(driver: TransactionDriver) -> None:
    first = driver.initialized()
    assert end(driver, first) is INVALID
    second = driver.raised(first)
    driver.marked()

    assert end(driver, second) is INVALID
    assert driver.snapshot.producer == second


# ---- repetitions


def test_an_end_that_is_repeated_is_answered_with_the_same_epoch(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)

    assert end(driver, first) is CONCURRENT
    assert end(driver, first, commit=False) is INVALID
    driver.marked()
    token = driver.end(first, version=2)

    assert (driver.error(token), driver.answers[token].producer) == (NONE, second)
    assert end(driver, first, commit=False) is INVALID
    assert driver.snapshot.producer == second


def test_an_end_is_not_repeated_once_the_next_transaction_has_begun(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)
    driver.marked()
    driver.add(second, A, version=2)

    assert end(driver, first) is FENCED
    assert driver.state is TransactionState.ONGOING


def test_a_repeated_end_is_answered_by_the_next_coordinator(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)
    reload(driver)
    assert end(driver, first) is CONCURRENT
    driver.marked()
    reload(driver)

    token = driver.end(first, version=2)

    assert (driver.error(token), driver.answers[token].producer) == (NONE, second)


def test_a_producer_that_goes_on_after_a_lost_answer_has_the_raised_epoch(driver: TransactionDriver) -> None:
    first = driver.initialized()
    second = driver.raised(first)
    driver.marked()

    assert driver.initialized(first) == second


def test_an_end_whose_write_failed_changes_nothing(driver: TransactionDriver) -> None:
    first = driver.initialized()
    driver.add(first, A, version=2)
    driver.hold = True
    token = driver.end(first, version=2)
    assert end(driver, first) is CONCURRENT
    driver.written(ErrorCode.COORDINATOR_NOT_AVAILABLE, logged=False)
    assert driver.answers[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.answers[token].producer == NO_PRODUCER

    driver.hold = False
    assert end(driver, first) is NONE


# ---- fences


def test_a_transaction_that_timed_out_is_aborted_in_the_next_epoch(driver: TransactionDriver) -> None:
    first = driver.initialized()
    driver.add(first, A, version=2)
    driver.now_ms += 60_001
    driver.step(CheckTimeout())
    assert driver.markers == [(Producer(first.id, 1), False, frozenset({A}))]
    driver.marked()

    assert driver.error(driver.add(first, B, version=2)) is FENCED
    assert end(driver, first) is INVALID  # it was aborted
    token = driver.end(first, commit=False, version=2)
    assert driver.answers[token].producer == Producer(first.id, 1)


def test_a_successor_fences_every_epoch_that_came_before(driver: TransactionDriver) -> None:
    first = driver.initialized()
    driver.add(first, A, version=2)
    assert driver.error(driver.initialize()) is CONCURRENT
    driver.marked()
    zombie = driver.answers[driver.end(first, commit=False, version=2)].producer

    successor = driver.initialized()

    assert (zombie.epoch, successor.epoch) == (1, 2)
    assert driver.error(driver.add(zombie, A, version=2)) is FENCED
    assert end(driver, zombie, commit=False) is FENCED
    assert end(driver, first, commit=False) is FENCED


def test_an_unknown_producer_id_is_refused(driver: TransactionDriver) -> None:
    first = driver.initialized()
    driver.add(first, A, version=2)

    assert end(driver, Producer(first.id + 1, 0)) is UNKNOWN
    assert end(driver, Producer(first.id, 7)) is FENCED
    assert end(driver, Producer(-1, -1)) is UNKNOWN


# ---- after the last epoch


def test_after_the_last_epoch_follows_another_producer_id(driver: TransactionDriver) -> None:
    last = exhausted(driver)

    following = driver.raised(last)

    assert following.epoch == 0
    assert following.id != last.id
    assert driver.markers == [(Producer(last.id, LAST_EPOCH), True, frozenset({A, B}))]
    assert driver.snapshot.producer == Producer(last.id, LAST_EPOCH)
    driver.marked()
    assert driver.snapshot.producer == following
    assert driver.error(driver.add(following, A, version=2)) is NONE


def test_the_following_id_is_told_to_wait_until_the_markers_are_written(driver: TransactionDriver) -> None:
    following = driver.raised(exhausted(driver))

    assert driver.error(driver.add(following, A, version=2)) is CONCURRENT
    assert end(driver, following, commit=False) is CONCURRENT
    assert driver.error(driver.initialize(following)) is CONCURRENT
    assert driver.transaction.verify(following, [A]) == {A: CONCURRENT}


@pytest.mark.parametrize("loads", [False, True])
def test_a_repeated_end_after_the_last_epoch_is_answered_with_the_following_id(
    driver: TransactionDriver, loads: bool
) -> None:
    last = exhausted(driver)
    following = driver.raised(last)
    if loads:
        reload(driver)
    assert end(driver, last) is CONCURRENT
    driver.marked()
    if loads:
        reload(driver)

    token = driver.end(last, version=2)

    assert (driver.error(token), driver.answers[token].producer) == (NONE, following)
    assert driver.initialized(last) == following
    assert end(driver, Producer(last.id, 5)) is UNKNOWN


def test_a_transaction_in_the_last_epoch_is_fenced_in_the_one_that_no_client_gets(
    driver: TransactionDriver,
) -> None:
    last = exhausted(driver)
    driver.add(last, A, version=2)
    driver.now_ms += 60_001
    driver.step(CheckTimeout())
    driver.marked()

    assert driver.snapshot.producer == Producer(last.id, LAST_EPOCH)
    assert driver.initialized().epoch == 0
    assert driver.snapshot.producer.id != last.id


# ---- the coordinator


@in_virtual_time
async def test_an_end_in_version_2_brings_the_next_epoch_and_the_markers_have_it() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as coordinator:
        first = await initialized(coordinator)
        assert await coordinator.add_partitions("t", first, ALL, 2) is NONE

        result = await coordinator.end_raising("t", first, commit=True)

        assert (result.error, result.producer) == (NONE, Producer(first.id, 1))
        await until(coordinator, TransactionState.COMPLETE_COMMIT)
        assert {marker.producer_epoch for found in cluster.written.values() for marker in found} == {1}
        assert await coordinator.add_partitions("t", result.producer, ALL, 2) is NONE


@in_virtual_time
async def test_after_the_last_epoch_the_coordinator_takes_another_producer_id() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as coordinator:
        first = await initialized(coordinator)
        found = coordinator._find("t")
        assert not isinstance(found, ErrorCode)
        last = Producer(first.id, LAST_EPOCH - 1)
        found[1].replay(replace(described(coordinator), producer=last))
        assert await coordinator.add_partitions("t", last, ALL, 2) is NONE

        result = await coordinator.end_raising("t", last, commit=True)
        again = await coordinator.end_raising("t", last, commit=True)

        assert (result.error, result.producer.epoch) == (NONE, 0)
        assert result.producer.id != first.id
        assert again.error is ErrorCode.CONCURRENT_TRANSACTIONS
        await until(coordinator, TransactionState.COMPLETE_COMMIT)
        repeated = await coordinator.end_raising("t", last, commit=True)
        assert (repeated.error, repeated.producer) == (NONE, result.producer)
        assert await coordinator.add_partitions("t", result.producer, ALL, 2) is NONE


@in_virtual_time
async def test_an_abort_without_a_partition_is_complete_at_once() -> None:
    async with leading(memory_store(), MemoryCluster()) as coordinator:
        first = await initialized(coordinator)

        result = await coordinator.end_raising("t", first, commit=False)

        assert (result.error, result.producer.epoch) == (NONE, 1)
        await until(coordinator, TransactionState.COMPLETE_ABORT)


@in_virtual_time
async def test_partitions_that_join_at_the_same_time_wait_for_each_other() -> None:
    async with leading(memory_store(), MemoryCluster()) as coordinator:
        first = await initialized(coordinator)

        errors = await asyncio.gather(
            *(coordinator.add_partitions("t", first, [partition], 2) for partition in ALL)
        )

        assert errors == [NONE] * 3
        assert described(coordinator).partitions == frozenset(ALL)


@in_virtual_time
async def test_an_end_of_an_unknown_transactional_id_has_its_error() -> None:
    async with leading(memory_store(), MemoryCluster()) as coordinator:
        result = await coordinator.end_raising("nobody", Producer(1, 0), commit=True)
        assert result.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await coordinator.end_raising("", Producer(1, 0), commit=True)).error is (
            ErrorCode.INVALID_REQUEST
        )
