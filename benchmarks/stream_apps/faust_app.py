"""A faust-streaming application: one agent, with one actor or many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import faust

from stream_apps.meter import Meter, Task


def application(task: Task, meter: Meter) -> Any:
    """Return an app with an agent that handles the topic, without a web server and without a table."""
    app = faust.App(
        task.group,
        broker=f"kafka://{task.servers}",
        datadir=Path(task.folder, "faust"),
        web_enabled=False,
        topic_disable_leader=True,
        broker_commit_interval=1.0,
        consumer_auto_offset_reset="earliest",
        value_serializer="raw",
        key_serializer="raw",
    )
    topic = app.topic(task.topic, key_serializer="raw", value_serializer="raw")

    async def handle(stream: Any) -> None:
        if task.is_noop:
            async for value in stream:
                await meter.nothing(value)
        async for event in stream.events():
            message = event.message
            await meter.sleep(message.key, message.value)

    app.agent(topic, concurrency=task.concurrency if task.style == "many actors" else 1)(handle)
    return app


async def run(app: Any) -> None:
    await app.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(run(application(given, Meter(given))))
