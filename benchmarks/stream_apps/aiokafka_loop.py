"""The loops that users of aiokafka write: one record at a time, and all records of a poll at once."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer

from stream_apps.meter import Meter, Task


def consumer(task: Task, *, commits: bool) -> Any:
    return AIOKafkaConsumer(
        task.topic,
        bootstrap_servers=task.servers,
        group_id=task.group,
        auto_offset_reset="earliest",
        enable_auto_commit=commits,
        auto_commit_interval_ms=1000,
    )


async def one_by_one(task: Task, meter: Meter) -> None:
    """`async for record in consumer: await handle(record)`, with automatic commits."""
    async with consumer(task, commits=True) as records:
        if task.is_noop:
            async for record in records:
                await meter.nothing(record)
        async for record in records:
            await meter.sleep(record.key, record.value)


async def polled(task: Task, meter: Meter) -> None:
    """`await handle(record)` for each record of a poll, with automatic commits."""
    async with consumer(task, commits=True) as records:
        while True:
            for found in (await records.getmany(timeout_ms=1000)).values():
                for record in found:
                    if task.is_noop:
                        await meter.nothing(record)
                    else:
                        await meter.sleep(record.key, record.value)


async def gathered(task: Task, meter: Meter) -> None:
    """`gather` over all records of a poll, then a commit: the order of a key is lost."""
    async with consumer(task, commits=False) as records:
        while True:
            found = await records.getmany(timeout_ms=1000, max_records=task.concurrency)
            batch = [record for each in found.values() for record in each]
            if task.is_noop:
                await asyncio.gather(*map(meter.nothing, batch))
            else:
                await asyncio.gather(*(meter.sleep(one.key, one.value) for one in batch))
            if batch:
                await records.commit()


async def gathered_by_key(task: Task, meter: Meter) -> None:
    """`gather` over the keys of a poll, each key's records one by one, then a commit."""

    async def of_a_key(chain: list[Any]) -> None:
        for record in chain:
            if task.is_noop:
                await meter.nothing(record)
            else:
                await meter.sleep(record.key, record.value)

    async with consumer(task, commits=False) as records:
        while True:
            found = await records.getmany(timeout_ms=1000, max_records=task.concurrency)
            chains: dict[bytes, list[Any]] = {}
            for each in found.values():
                for record in each:
                    chains.setdefault(record.key, []).append(record)
            await asyncio.gather(*map(of_a_key, chains.values()))
            if chains:
                await records.commit()


STYLES = {
    "one by one": one_by_one,
    "getmany": polled,
    "gather": gathered,
    "gather by key": gathered_by_key,
}


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(STYLES[given.style](given, Meter(given)))
