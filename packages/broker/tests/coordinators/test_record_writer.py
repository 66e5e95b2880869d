"""Writes of a coordinator: each settles once, whatever comes of it."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.coordinators.testing import (
    LEDGER_TOPIC,
    WRITE_TIMEOUT_MS,
    LedgerCoordinator,
    LedgerState,
    LoggedErrors,
    MemoryStore,
    Transition,
    in_virtual_time,
)
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import ErrorCode, KafkaError, NotEnoughReplicas, NotLeaderOrFollower

PARTITIONS = 4
ALL = tuple(range(PARTITIONS))
KEY = "orders"
HOME = partition_for(KEY, PARTITIONS)


def a_store() -> MemoryStore:
    return MemoryStore(PARTITIONS, topic=LEDGER_TOPIC)


def a_ledger(store: MemoryStore) -> LedgerCoordinator:
    return LedgerCoordinator(store, Environment(clock=LoopClock()))


async def moment() -> None:
    await asyncio.sleep(0.01)


@in_virtual_time
async def test_a_state_changes_only_once_its_record_is_committed() -> None:
    store = a_store()
    async with a_ledger(store) as ledger, asyncio.TaskGroup() as tasks:
        ledger.elect(*ALL)
        store.hold = True
        first = tasks.create_task(ledger.advance(KEY))
        await moment()
        assert ledger.status(KEY) is None
        assert await ledger.advance(KEY) is ErrorCode.CONCURRENT_TRANSACTIONS

        store.release()

        assert await first is ErrorCode.NONE
        assert ledger.status(KEY) == "Ongoing"


@in_virtual_time
async def test_a_refused_append_is_undone_at_once() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        store.fail_with = NotEnoughReplicas()
        assert await ledger.advance(KEY) is ErrorCode.NOT_ENOUGH_REPLICAS

        store.fail_with = None

        assert await ledger.advance(KEY) is ErrorCode.NONE
        assert ledger.status(KEY) == "Ongoing"


@in_virtual_time
async def test_a_record_that_replicas_do_not_get_in_time_is_undone() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        store.hold = True
        started_ms = ledger.clock.monotonic_ms()

        assert await ledger.advance(KEY) is ErrorCode.REQUEST_TIMED_OUT

        assert ledger.clock.monotonic_ms() - started_ms == pytest.approx(WRITE_TIMEOUT_MS)
        assert ledger.status(KEY) is None
        store.hold = False
        assert await ledger.advance(KEY) is ErrorCode.NONE


@in_virtual_time
async def test_a_write_that_waits_when_leadership_ends_is_undone() -> None:
    store = a_store()
    async with a_ledger(store) as ledger, asyncio.TaskGroup() as tasks:
        ledger.elect(*ALL)
        store.hold = True
        waiting = tasks.create_task(ledger.advance(KEY))
        await moment()

        store.release(NotLeaderOrFollower())

        assert await waiting is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ledger.status(KEY) is None


@in_virtual_time
async def test_a_write_whose_request_was_cancelled_still_reaches_the_state() -> None:
    store = a_store()
    async with a_ledger(store) as ledger, asyncio.TaskGroup() as tasks:
        ledger.elect(*ALL)
        store.hold = True
        request = tasks.create_task(ledger.advance(KEY))
        await moment()
        request.cancel()
        await moment()

        store.release()
        await moment()

        assert ledger.status(KEY) == "Ongoing"


@in_virtual_time
async def test_writes_that_wait_are_answered_when_the_coordinator_stops() -> None:
    store = a_store()
    async with asyncio.TaskGroup() as tasks:
        async with a_ledger(store) as ledger:
            ledger.elect(*ALL)
            store.hold = True
            waiting = tasks.create_task(ledger.advance(KEY))
            await moment()

        assert await waiting is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert ledger.status(KEY) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@in_virtual_time
async def test_a_write_is_answered_when_the_coordinator_stops_in_the_turn_of_its_append() -> None:
    """The task that waits for the replicas is cancelled before its first step."""
    store = a_store()
    async with asyncio.TaskGroup() as tasks:
        async with a_ledger(store) as ledger:
            ledger.elect(*ALL)
            store.hold = True
            waiting = tasks.create_task(ledger.advance(KEY))
            await asyncio.sleep(0)
            assert store.ends[HOME] == 1

        async with asyncio.timeout(1):
            assert await waiting is ErrorCode.COORDINATOR_NOT_AVAILABLE


@in_virtual_time
async def test_an_append_that_fails_for_an_unknown_reason_is_undone_and_logged() -> None:
    store, errors = a_store(), LoggedErrors()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        store.fail_with = RuntimeError("a fault")

        with errors.watched():
            assert await ledger.advance(KEY) is ErrorCode.UNKNOWN_SERVER_ERROR

        (logged,) = errors.records
        assert logged.exc_info is not None
        assert logged.exc_info[1] is store.fail_with
        store.fail_with = None
        assert await ledger.advance(KEY) is ErrorCode.NONE


@in_virtual_time
async def test_a_record_that_cannot_be_encoded_settles_its_write() -> None:
    store, errors = a_store(), LoggedErrors()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        partition = ledger.runtime.find(KEY)
        assert not isinstance(partition, ErrorCode)
        settled: list[KafkaError | None] = []

        with errors.watched():
            is_appended = ledger.writer.write(partition, [Transition(KEY, "\ud800")], settled.append)

        assert not is_appended
        assert [one.code for one in settled if one] == [ErrorCode.UNKNOWN_SERVER_ERROR]
        assert len(errors.records) == 1
        assert store.batches[HOME] == []


class _Unreplayable(LedgerState):
    def replay(self, record: Transition, position: int, producer_id: int | None) -> None:
        raise RuntimeError(record.key)


@in_virtual_time
async def test_a_record_that_cannot_be_replayed_does_not_settle_as_a_success() -> None:
    store, errors = a_store(), LoggedErrors()
    for hold in (False, True):
        async with a_ledger(store) as ledger, asyncio.TaskGroup() as tasks:
            ledger.elect(HOME)
            await moment()
            partition = ledger.runtime.find(KEY)
            assert not isinstance(partition, ErrorCode)
            partition.state, store.hold = _Unreplayable(HOME), hold

            with errors.watched():
                writing = tasks.create_task(ledger.advance(KEY))
                await moment()
                store.release()

                assert await writing is ErrorCode.UNKNOWN_SERVER_ERROR
    assert len(errors.records) == 2


@in_virtual_time
async def test_tombstones_are_not_waited_for() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await ledger.advance(KEY)
        partition = ledger.runtime.find(KEY)
        assert not isinstance(partition, ErrorCode)
        for failure in (NotEnoughReplicas(), RuntimeError("a fault")):
            store.fail_with = failure
            ledger.forget([KEY], partition)
        store.fail_with, store.hold = None, True
        ledger.forget([KEY], partition)

    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await moment()
        assert ledger.status(KEY) is None
