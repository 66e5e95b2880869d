"""No broker at all: tasks that wait by `asyncio.sleep`, one after another per key, as fast as a loop can."""

from __future__ import annotations

import asyncio
from itertools import count

from stream_apps.meter import Meter, Task


async def sleepers(task: Task, meter: Meter, handler_us: int) -> None:
    """As many tasks as keys, each of which waits for one record's handler after another."""

    async def of_a_key(key: bytes) -> None:
        for number in count():
            await meter.sleep(key, b"%010d %09d" % (number, handler_us))

    async with asyncio.TaskGroup() as group:
        for number in range(task.concurrency):
            group.create_task(of_a_key(b"%d" % number))


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(sleepers(given, Meter(given), int(given.style)))
