"""Processors that share a group on a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from ottla.broker.testing import BrokerThread
from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams import Processor
from peers.order_processors import WAIT_S, processor, until
from peers.order_processors import write as write_to

PARTITIONS = 4


async def write(broker: BrokerThread, count: int) -> None:
    await write_to(broker, count, PARTITIONS, keys=50)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
async def test_nothing_runs_twice_when_members_come_and_go(ottla_broker: BrokerThread, strategy: str) -> None:
    """Faust's issues 221 and 236, Parallel Consumer's issue 857: a drained member hands over cleanly."""
    await write(ottla_broker, 2_000)
    seen: Counter[tuple[int, int]] = Counter()

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.01)
        seen[record.partition, record.offset] += 1

    settings = {"max_concurrency": 20, "partition_assignment_strategy": strategy}
    async with processor(ottla_broker, handle, **settings) as first:
        await until(lambda: sum(seen.values()) > 100)
        async with processor(ottla_broker, handle, **settings) as second:
            await until(lambda: len(second.scheduler.partitions) == PARTITIONS // 2)
            before = sum(seen.values())
            await until(lambda: sum(seen.values()) > before + 100)
        await until(lambda: len(first.scheduler.partitions) == PARTITIONS)
        await until(lambda: len(seen) == 2_000)

    assert set(seen.values()) == {1}


async def test_a_member_that_drains_keeps_its_heartbeat_and_its_other_partitions(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, 400)
    gate, drains = asyncio.Event(), asyncio.Event()
    seen: Counter[tuple[int, int]] = Counter()
    blocked: set[int] = set()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            blocked.add(record.partition)
            await gate.wait()
        if record.offset >= 20:  # most records are left for the drain, however late the other member joins
            await drains.wait()
        await asyncio.sleep(0.002)
        seen[record.partition, record.offset] += 1

    settings = {"session_timeout_ms": 6_000, "max_concurrency": 10}
    async with processor(ottla_broker, handle, **settings) as first:
        await until(lambda: len(blocked) == PARTITIONS)
        joining = processor(ottla_broker, handle, **settings)
        entering = asyncio.get_running_loop().create_task(joining.run())
        await until(lambda: any(each.phase.value == "draining" for each in assignments(first)))
        before = sum(seen.values())
        drains.set()
        await until(lambda: sum(seen.values()) > before + 50)
        gate.set()
        await until(lambda: len(joining.scheduler.partitions) == PARTITIONS // 2)
        await until(lambda: len(seen) == 400)
        joining.stop()
        await entering

    assert set(seen.values()) == {1}


async def test_a_drain_is_bounded_and_what_it_cancels_runs_on_another_member(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, 8)
    cancelled: set[tuple[int, int]] = set()
    seen: Counter[tuple[int, int]] = Counter()

    async def hang(record: ConsumerRecord) -> None:
        if record.offset == 1:
            try:
                await asyncio.sleep(1_000)
            finally:
                cancelled.add((record.partition, record.offset))
        seen[record.partition, record.offset] += 1

    async def handle(record: ConsumerRecord) -> None:
        seen[record.partition, record.offset] += 1

    async with processor(ottla_broker, hang, drain_timeout_ms=50):
        await until(lambda: len(seen) == PARTITIONS)
        async with processor(ottla_broker, handle) as second:
            await until(lambda: len(second.scheduler.partitions) == PARTITIONS // 2)
            moved = {each.partition for each in second.scheduler.partitions}
            await until(lambda: all((each, 1) in seen for each in moved))
            assert {partition for partition, _ in cancelled} == moved

    assert set(seen.values()) == {1}


class SlowStates:
    """Partition states of which partition 0 takes until `restored` is done."""

    def __init__(self) -> None:
        self.restored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.revoked_ones: set[int] = set()

    async def assigned(self, partition: TopicPartition, offset: int | None) -> asyncio.Future[None] | None:
        return self.restored if partition.partition == 0 else None

    def committed(self, partition: TopicPartition, offset: int) -> None: ...

    def revoked(self, partition: TopicPartition) -> None:
        self.revoked_ones.add(partition.partition)


async def test_a_partition_whose_state_is_restored_for_long_holds_no_worker(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, 400)
    states = SlowStates()
    seen: Counter[int] = Counter()

    async def handle(record: ConsumerRecord) -> None:
        assert record.partition or states.restored.done(), "its state is not there"
        seen[record.partition] += 1

    async with processor(ottla_broker, handle, states=states, max_concurrency=1) as one:
        await until(lambda: seen == {1: 100, 2: 100, 3: 100})
        assert one.consumer.paused() == {TopicPartition("orders", 0)}
        states.restored.set_result(None)
        await until(lambda: seen[0] == 100)

    assert states.revoked_ones == set(range(PARTITIONS))


async def test_a_partition_that_goes_while_its_state_is_restored_is_given_up(
    ottla_broker: BrokerThread,
) -> None:
    await write(ottla_broker, 400)
    states = SlowStates()
    seen: Counter[int] = Counter()

    async def handle(record: ConsumerRecord) -> None:
        seen[record.partition] += 1

    async with processor(ottla_broker, handle, states=states):
        await until(lambda: sum(seen.values()) == 300)
    states.restored.set_result(None)
    async with processor(ottla_broker, handle):
        await until(lambda: seen[0] == 100)

    assert states.revoked_ones == set(range(PARTITIONS))
    assert sum(seen.values()) == 400


async def test_state_that_cannot_be_restored_stops_the_processor(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, 4)
    states = SlowStates()
    states.restored.set_exception(OSError("the disk is gone"))

    with pytest.raises(OSError, match="the disk is gone"):
        async with (
            asyncio.timeout(WAIT_S),
            processor(ottla_broker, lambda record: None, states=states) as one,
        ):
            await one.wait()


def assignments(one: Processor) -> list[Any]:
    return list(one.scheduler._assigned.values())
