"""Our consumer without streams: the loop whose cost is subtracted to get the overhead of a processor."""

from __future__ import annotations

import asyncio

from ottla.consumer import Consumer
from stream_apps.meter import Meter, Task


async def polled(task: Task, meter: Meter) -> None:
    """`getmany` and `await handle(record)` for each, with automatic commits."""
    consumer = Consumer(
        task.topic,
        bootstrap_servers=task.servers,
        group_id=task.group,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=1000,
    )
    async with consumer:
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    if task.is_noop:
                        await meter.nothing(record)
                    else:
                        await meter.sleep(record.key, record.value)


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(polled(given, Meter(given)))
