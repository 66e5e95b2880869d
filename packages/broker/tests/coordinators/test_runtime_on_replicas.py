"""A coordinator over replicas: leader epochs, and changes of role while it writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.testing import DataPlane
from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition, partition_for
from ottla.broker.coordinators.internal_topic_log import ReplicatedStore
from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.coordinators.testing import (
    LEDGER_TOPIC,
    LedgerCoordinator,
    LedgerState,
    Transition,
    TransitionCodec,
)
from ottla.broker.replication.partition import Assignment
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import LoopBudget
from ottla.protocol.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaError,
    NotEnoughReplicas,
    RequestTimedOut,
)
from ottla.protocol.topics import TopicPartition

PARTITIONS = 4
ALL = tuple(range(PARTITIONS))
KEY = "orders"
HOME = partition_for(KEY, PARTITIONS)


async def test_replicas_refuse_a_coordinator_of_an_older_epoch(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path)
    await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3)
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1)
    record = TransitionCodec().encode(Transition(KEY, "Ongoing"))
    assert store.is_blank(0)

    appended = store.append(0, [record], 0, leader_epoch=3)

    assert (appended.position, appended.committed) == (0, None)
    assert not store.is_blank(0)
    with pytest.raises(FencedLeaderEpoch):
        store.append(0, [record], 0, leader_epoch=2)
    with pytest.raises(FencedLeaderEpoch):
        await anext(store.read(0, 2))
    assert len([chunk async for chunk in store.read(0, 3)]) == 1
    plane.logs.close()


async def test_a_read_ends_once_all_that_it_has_read_is_committed(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path)
    partition = await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1, commit_wait_ms=60_000)
    record = TransitionCodec().encode(Transition(KEY, "Prepared"))
    assert store.append(0, [record], 0, leader_epoch=3).committed is not None
    chunks = store.read(0, 3)
    assert await anext(chunks)

    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(anext(chunks, b""))
        await asyncio.sleep(0)
        assert not ending.done()
        partition.fetched(2, 1, 0, plane.environment.clock.now_ms())

    assert ending.result() == b""
    plane.logs.close()


async def test_a_read_that_waits_for_its_replicas_in_vain_says_so(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path)
    await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1, commit_wait_ms=1)
    store.append(0, [TransitionCodec().encode(Transition(KEY, "Ongoing"))], 0, leader_epoch=3)

    with pytest.raises(RequestTimedOut):
        assert [chunk async for chunk in store.read(0, 3)]
    plane.logs.close()


async def test_a_read_says_how_many_replicas_its_records_wait_for(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path)
    await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3, isr=(1,), replicas=(1, 2), min_insync_replicas="2")
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1, commit_wait_ms=60_000)

    with pytest.raises(NotEnoughReplicas, match=r"1 in-sync replica\(s\), min.insync.replicas is 2"):
        assert [chunk async for chunk in store.read(0, 3)]
    plane.logs.close()


async def awaited(waits: Awaitable[None]) -> None:
    await waits


@pytest.mark.parametrize("min_insync_replicas", ["1", "3"])
async def test_a_leader_knows_when_all_that_it_has_is_committed(
    tmp_path: Path, min_insync_replicas: str
) -> None:
    plane = DataPlane(tmp_path)
    partition = await plane.lead(
        LEDGER_TOPIC,
        0,
        leader_epoch=3,
        isr=(1, 2),
        replicas=(1, 2),
        min_insync_replicas=min_insync_replicas,
    )
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1)
    assert store.committed(0, 3) is None
    record = TransitionCodec().encode(Transition(KEY, "Prepared"))
    store.append(0, [record], 0, leader_epoch=3, required_acks=1)

    committed = store.committed(0, 3)
    assert committed is not None
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(awaited(committed()))
        await asyncio.sleep(0)
        assert not waiting.done()
        partition.fetched(2, 1, 0, plane.environment.clock.now_ms())

    assert store.committed(0, 3) is None
    with pytest.raises(FencedLeaderEpoch):
        store.committed(0, 2)
    plane.logs.close()


async def test_a_leader_knows_whether_another_could_have_been_elected(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path)
    await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    await plane.lead(LEDGER_TOPIC, 1, leader_epoch=3, isr=(1,), replicas=(1, 2))
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 2)

    assert not store.is_alone(0, 3)
    assert store.is_alone(1, 3)
    with pytest.raises(FencedLeaderEpoch):
        store.is_alone(1, 2)
    plane.logs.close()


@pytest.mark.parametrize(("fetched_to", "timeout_ms"), [(1, 60_000), (0, 100)])
async def test_a_leader_is_confirmed_once_its_replicas_have_fetched_again(
    tmp_path: Path, fetched_to: int, timeout_ms: int
) -> None:
    plane = DataPlane(tmp_path)
    replica = await plane.lead(LEDGER_TOPIC, 0, leader_epoch=3, isr=(1, 2), replicas=(1, 2))
    async with BackgroundTasks(plane.metrics, plane.environment.clock) as tasks:
        store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: 1)
        writer: RecordWriter[Any, Any] = RecordWriter(
            store, TransitionCodec(), plane.environment.clock, tasks, timeout_ms
        )
        home = CoordinatorPartition(0, 3, LedgerState(0))
        confirming = asyncio.create_task(writer.confirm_leadership(home, Transition(KEY, None)))
        await asyncio.sleep(0)
        replica.fetched(2, fetched_to, 0, plane.environment.clock.now_ms())

        error = await confirming
    assert error is None if fetched_to else isinstance(error, RequestTimedOut)
    plane.logs.close()


@pytest.fixture
async def replicated(
    tmp_path: Path,
) -> AsyncIterator[tuple[DataPlane, LedgerCoordinator]]:
    """A coordinator over replicas that let other tasks run before each partition's change of role."""
    plane = DataPlane(tmp_path, budget=LoopBudget(background_ms=0.0))
    store = ReplicatedStore(plane.replicas, LEDGER_TOPIC, lambda: PARTITIONS)
    async with LedgerCoordinator(store, Environment()) as ledger:
        plane.replicas.subscribe(ledger.runtime)
        yield plane, ledger
    plane.logs.close()


async def take_roles(plane: DataPlane, leader_epoch: int, *, leader: int = 1) -> None:
    assignment = Assignment(
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=leader_epoch,
        isr=(1,),
        replicas=(1, 2),
    )
    answers = await plane.replicas.apply(
        [(TopicPartition(LEDGER_TOPIC, one), None, assignment) for one in ALL]
    )
    assert set(answers.values()) == {ErrorCode.NONE}


async def test_no_write_is_fenced_while_leaderships_go_on_in_a_newer_epoch(
    replicated: tuple[DataPlane, LedgerCoordinator],
) -> None:
    plane, ledger = replicated
    keys = [next(key for key in map(str, range(99)) if partition_for(key, PARTITIONS) == one) for one in ALL]
    await take_roles(plane, 1)
    answers: list[ErrorCode] = []

    async def write() -> None:
        while True:
            answers.extend([await ledger.advance(key) for key in keys])
            await asyncio.sleep(0)

    writing = asyncio.get_running_loop().create_task(write())
    for epoch in range(2, 6):
        await take_roles(plane, epoch)
    writing.cancel()

    assert len(answers) > PARTITIONS
    assert set(answers) == {ErrorCode.NONE}


async def test_a_state_whose_leadership_was_lost_in_between_writes_nothing_more(
    replicated: tuple[DataPlane, LedgerCoordinator],
) -> None:
    plane, ledger = replicated
    await take_roles(plane, 1)
    assert await ledger.advance(KEY) is ErrorCode.NONE
    lost = ledger.runtime.find(KEY)
    assert isinstance(lost, CoordinatorPartition)
    refusals: list[KafkaError | None] = []

    await take_roles(plane, 2, leader=2)
    assert ledger.status(KEY) is ErrorCode.NOT_COORDINATOR
    await take_roles(plane, 3)

    assert ledger.runtime.find(KEY) is not lost
    assert not ledger.writer.write(lost, [Transition(KEY, "Prepared")], refusals.append)
    assert [type(one) for one in refusals] == [FencedLeaderEpoch]
    assert plane.replicas.leader(TopicPartition(LEDGER_TOPIC, HOME)).log.log_end_offset == 1
