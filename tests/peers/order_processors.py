"""Processors of the topic `orders` in the group `g`, on a broker of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.producer import Producer
from ottla.streams import Processor

WAIT_S: Final = 120


async def write(broker: BrokerThread, count: int, partitions: int, *, keys: int = 0) -> None:
    """Create the topic and write records to its partitions in turn, with as many keys, or only `keys`."""
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.topics.create("orders", partitions=partitions)
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(count):
            await producer.send(
                "orders", b"", key=b"%d" % (number % (keys or count)), partition=number % partitions
            )
        await producer.flush()


def processor(broker: BrokerThread, handler: Any, **settings: Any) -> Processor:
    """Make a processor that does not try again, and commits and sends heartbeats often."""
    wanted: dict[str, Any] = {
        "group_id": "g",
        "retries": 0,
        "commit_interval_ms": 20,
        "heartbeat_interval_ms": 100,
        **settings,
    }
    return Processor(handler, "orders", bootstrap_servers=broker.bootstrap_servers, **wanted)


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what processors do in tasks and threads of their own."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
