"""Our processor, in key order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.consumer import ConsumerRecord
from ottla.streams.processing.processor import Processor
from stream_apps.meter import Meter, Task


def handler(task: Task, meter: Meter) -> Callable[[ConsumerRecord], Awaitable[None]]:
    """Return the handler of a task."""

    async def sleep(record: ConsumerRecord) -> None:
        await meter.sleep(record.key, record.value)

    return meter.nothing if task.is_noop else sleep


async def process(task: Task, meter: Meter) -> None:
    processor = Processor(
        handler(task, meter),
        task.topic,
        bootstrap_servers=task.servers,
        group_id=task.group,
        max_concurrency=task.concurrency,
    )
    await processor.run()


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(process(given, Meter(given)))
