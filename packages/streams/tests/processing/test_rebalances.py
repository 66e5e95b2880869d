"""Processors that share a group on a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.testing import BrokerThread
from ottla.client.admin import Admin
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer
from ottla.streams import Processor

WAIT_S = 60
PARTITIONS = 4


async def write(broker: BrokerThread, count: int) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.topics.create("orders", partitions=PARTITIONS)
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(count):
            await producer.send("orders", b"", key=b"%d" % (number % 50), partition=number % PARTITIONS)
        await producer.flush()


def processor(broker: BrokerThread, handler: Any, **settings: Any) -> Processor:
    wanted = {
        "group_id": "g",
        "retries": 0,
        "commit_interval_ms": 20,
        "heartbeat_interval_ms": 100,
        **settings,
    }
    return Processor(handler, "orders", bootstrap_servers=broker.bootstrap_servers, **wanted)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


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
    gate = asyncio.Event()
    seen: Counter[tuple[int, int]] = Counter()
    blocked: set[int] = set()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            blocked.add(record.partition)
            await gate.wait()
        await asyncio.sleep(0.002)
        seen[record.partition, record.offset] += 1

    settings = {"session_timeout_ms": 6_000, "max_concurrency": 10}
    async with processor(ottla_broker, handle, **settings) as first:
        await until(lambda: len(blocked) == PARTITIONS)
        joining = processor(ottla_broker, handle, **settings)
        entering = asyncio.get_running_loop().create_task(joining.run())
        await until(
            lambda: any(not each.can_run and each.phase.value == "draining" for each in assignments(first))
        )
        before = sum(seen.values())
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


def assignments(one: Processor) -> list[Any]:
    return list(one.scheduler._assigned.values())
