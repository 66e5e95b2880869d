"""A FastStream application on its aiokafka broker: one worker, or many for whose records it promises less."""

from __future__ import annotations

import asyncio
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage

from stream_apps.meter import Meter, Task

# "one worker" commits after the handler, "many workers" before it, "partitions" has a consumer for each.
POLICIES = {
    "one worker": (1, AckPolicy.ACK),
    "many workers": (0, AckPolicy.ACK_FIRST),
    "partitions": (8, AckPolicy.ACK),
}


def application(task: Task, meter: Meter) -> Any:
    """Return an app with one subscriber."""
    broker = KafkaBroker(task.servers, logger=None)
    workers, policy = POLICIES[task.style]
    subscriber = broker.subscriber(
        task.topic,
        group_id=task.group,
        auto_offset_reset="earliest",
        max_workers=workers or task.concurrency,
        ack_policy=policy,
        auto_commit_interval_ms=1000,
    )

    async def handle(message: KafkaMessage) -> None:
        if task.is_noop:
            await meter.nothing(message)
        else:
            record: Any = message.raw_message
            await meter.sleep(record.key, record.value)

    subscriber(handle)
    return FastStream(broker, logger=None)


if __name__ == "__main__":
    given = Task.given()
    asyncio.run(application(given, Meter(given)).run())
