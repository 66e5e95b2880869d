"""The shared parts of coordinators, driven by a coordinator that is not the one of groups."""

from __future__ import annotations

import asyncio
import random

import pytest

from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.coordinators.testing import (
    LEDGER_TOPIC,
    LedgerCoordinator,
    LoggedErrors,
    MemoryStore,
    Transition,
    TransitionCodec,
    in_virtual_time,
)
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import BatchBuilder, ControlType, end_transaction_marker

PARTITIONS = 4
ALL = tuple(range(PARTITIONS))
KEY = "orders"
HOME = partition_for(KEY, PARTITIONS)


def a_store() -> MemoryStore:
    return MemoryStore(PARTITIONS, topic=LEDGER_TOPIC)


def a_ledger(store: MemoryStore) -> LedgerCoordinator:
    return LedgerCoordinator(store, Environment(clock=LoopClock()))


def put(store: MemoryStore, *records: Transition, partition: int = HOME) -> None:
    codec = TransitionCodec()
    store.append_batch(partition, build_batch([codec.encode(one) for one in records], 0))


async def moment() -> None:
    await asyncio.sleep(0.01)


# ---- loading


def test_loads_that_fail_for_one_reason_are_logged_once_in_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_virtual_time
    async def fail_for_a_minute() -> None:
        store = a_store()
        put(store, Transition(KEY, "Ongoing"))
        for number in ALL:
            store.append_batch(number, build_batch([TransitionCodec().encode(Transition(KEY, "Ongoing"))], 0))
        store.led.clear()
        async with a_ledger(store) as ledger:
            ledger.elect(*ALL)
            await asyncio.sleep(60)

    fail_for_a_minute()

    lines = [vars(record) for record in caplog.records if "not loaded" in record.getMessage()]
    assert 2 <= len(lines) <= 7
    assert lines[1]["more_not_logged"] > 1


@in_virtual_time
async def test_a_loaded_state_equals_the_one_that_wrote_the_log() -> None:
    store, chance = a_store(), random.Random(4)
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        for _ in range(400):
            await ledger.advance(f"key-{chance.randrange(30)}", deadline_ms=0)
        written = {one.number: one.state.entries for one in ledger.runtime.partitions}

    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await moment()
        assert {one.number: one.state.entries for one in ledger.runtime.partitions} == written
        assert all(one.state.is_complete for one in ledger.runtime.partitions)
        assert sum(facts.records for facts in ledger.loads) == 400


@in_virtual_time
async def test_nothing_is_answered_before_the_state_is_complete() -> None:
    store = a_store()
    put(store, Transition(KEY, "Ongoing"))
    store.read_gate.clear()
    async with a_ledger(store) as ledger:
        assert ledger.status(KEY) is ErrorCode.NOT_COORDINATOR
        ledger.elect(*ALL)
        await moment()
        assert ledger.status(KEY) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert ledger.runtime.partitions.is_loading

        store.read_gate.set()
        await moment()

        assert ledger.status(KEY) == "Ongoing"


@in_virtual_time
async def test_partitions_elected_before_the_start_are_loaded_at_the_start() -> None:
    store = a_store()
    put(store, Transition(KEY, "Prepared"))
    ledger = a_ledger(store)
    ledger.elect(*ALL)
    assert ledger.status(KEY) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    async with ledger:
        await moment()

        assert ledger.status(KEY) == "Prepared"


@in_virtual_time
async def test_a_record_that_cannot_be_decoded_costs_no_other_record() -> None:
    store = a_store()
    put(store, Transition("a", "Ongoing"), Transition("b", "not a status at all"), Transition("#", "x"))
    put(store, Transition("c", "Ongoing"))
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await moment()

        state = next(one.state for one in ledger.runtime.partitions if one.number == HOME)
        assert list(state.entries) == ["a", "c"]


@in_virtual_time
async def test_transactional_records_and_their_markers_reach_the_state() -> None:
    store = a_store()
    builder = BatchBuilder(1 << 20)
    key, value, _ = TransitionCodec().encode(Transition("a", "Ongoing"))
    builder.append(key, value, 0)
    put(store, Transition("before", "Ongoing"))
    store.append_batch(
        HOME, builder.build(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    )
    marker = end_transaction_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )
    store.append_batch(HOME, marker)
    async with a_ledger(store) as ledger:
        ledger.elect(HOME)
        await moment()

        (partition,) = ledger.runtime.partitions
        assert partition.state.transactional == [("a", 7)]
        assert partition.state.ended == [(7, True)]
        assert partition.state.positions == [0, 1]


# ---- leadership that moves


@in_virtual_time
async def test_leadership_that_returns_during_a_load_is_loaded_again() -> None:
    store = a_store()
    put(store, Transition(KEY, "Ongoing"))
    store.read_gate.clear()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL, epoch=1)
        await moment()
        ledger.resign(HOME, epoch=2)
        put(store, Transition(KEY, "Prepared"))  # by the leader of epoch 2
        store.leader_epochs[HOME] = 3
        ledger.elect(HOME, epoch=3)
        await moment()

        store.read_gate.set()
        await moment()

        assert ledger.status(KEY) == "Prepared"
        assert len(ledger.loads) == 1, "the load of epoch 1 made no state"


@in_virtual_time
async def test_a_load_is_repeated_when_the_leadership_goes_on_in_a_newer_epoch() -> None:
    """It is no failure, and nothing that an operator has to look at."""
    store, errors = a_store(), LoggedErrors()
    put(store, Transition(KEY, "Ongoing"))
    store.read_gate.clear()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL, epoch=1)
        await moment()
        store.leader_epochs[HOME] = 2
        ledger.elect(HOME, epoch=2)

        with errors.watched():
            store.read_gate.set()
            await asyncio.sleep(1.0)

        assert ledger.status(KEY) == "Ongoing"
        assert errors.records == []


@in_virtual_time
async def test_a_load_of_a_leadership_that_has_ended_makes_no_state() -> None:
    store = a_store()
    put(store, Transition(KEY, "Ongoing"))
    store.read_gate.clear()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await moment()
        ledger.resign(HOME)

        store.read_gate.set()
        await moment()

        assert ledger.loads == []
        assert ledger.status(KEY) is ErrorCode.NOT_COORDINATOR


@in_virtual_time
async def test_after_many_changes_of_leadership_each_state_equals_its_log() -> None:
    store, chance = a_store(), random.Random(11)
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        for epoch in range(1, 120):
            await ledger.advance(f"key-{chance.randrange(20)}")
            number = chance.randrange(PARTITIONS)
            store.leader_epochs[number] = epoch
            if chance.random() < 0.5:
                ledger.resign(number, epoch=epoch)
                await asyncio.sleep(chance.choice([0, 0, 0.01]))
            ledger.elect(number, epoch=epoch)
            await asyncio.sleep(chance.choice([0, 0, 0.01]))
        await asyncio.sleep(5)
        present = {one.number: one.state.entries for one in ledger.runtime.partitions}

    async with a_ledger(store) as ledger:
        ledger.elect(*ALL, epoch=200)
        await moment()
        assert present == {one.number: one.state.entries for one in ledger.runtime.partitions}


@in_virtual_time
async def test_a_newer_epoch_of_the_same_leadership_keeps_the_state() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await ledger.advance(KEY)
        before = ledger.runtime.find(KEY)

        store.leader_epochs[HOME] = 4
        ledger.elect(HOME, epoch=4)

        assert ledger.runtime.find(KEY) is before
        assert await ledger.advance(KEY) is ErrorCode.NONE


@in_virtual_time
async def test_a_write_in_an_older_epoch_is_fenced_and_undone() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        store.leader_epochs[HOME] = 1

        assert await ledger.advance(KEY) is ErrorCode.FENCED_LEADER_EPOCH

        assert ledger.status(KEY) is None
        assert store.batches[HOME] == []


@in_virtual_time
async def test_an_older_resignation_does_not_end_a_newer_leadership() -> None:
    store = a_store()
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL, epoch=5)

        ledger.resign(HOME, epoch=4)

        assert ledger.status(KEY) is None
        assert ledger.unloads == []
        ledger.resign(HOME, epoch=6)
        assert ledger.status(KEY) is ErrorCode.NOT_COORDINATOR
        assert ledger.unloads == [HOME]


# ---- timers


@in_virtual_time
async def test_each_key_fires_at_its_own_deadline() -> None:
    async with a_ledger(a_store()) as ledger:
        ledger.elect(*ALL)
        await ledger.advance("late", deadline_ms=20_000)
        await ledger.advance("soon", deadline_ms=10_000)
        await asyncio.sleep(9.9)
        assert ledger.status("soon") == "Ongoing"

        await asyncio.sleep(0.2)

        assert (ledger.status("soon"), ledger.status("late")) == ("Prepared", "Ongoing")
        await asyncio.sleep(10)
        assert ledger.status("late") == "Prepared"


@in_virtual_time
async def test_a_key_that_fails_does_not_stop_the_timers_of_the_others() -> None:
    async with a_ledger(a_store()) as ledger:
        ledger.elect(*ALL)
        await ledger.advance("broken", deadline_ms=5_000)
        await ledger.advance("sound", deadline_ms=5_000)

        await asyncio.sleep(5.1)

        assert ledger.status("sound") == "Prepared"


@in_virtual_time
async def test_timers_are_set_again_from_a_loaded_state() -> None:
    store = a_store()
    put(store, Transition(KEY, "Ongoing", deadline_ms=30_000))
    async with a_ledger(store) as ledger:
        ledger.elect(*ALL)
        await asyncio.sleep(29)
        assert ledger.status(KEY) == "Ongoing"

        await asyncio.sleep(2)

        assert ledger.status(KEY) == "Prepared"
