"""A stream by itself: whoever asks, and what reads for it."""

from __future__ import annotations

import asyncio

from ottla.consumer.zookeeper.streams import MessageStream, StreamPositions
from ottla.consumer.zookeeper.testing import MemoryBrokers
from ottla.protocol.topics import TopicPartition

PLACE = TopicPartition("t", 0)


async def test_reading_that_ends_before_its_first_turn_is_begun_again_with_the_next_reader() -> None:
    brokers = MemoryBrokers()
    brokers.append("t", 0, b"a")
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        stream = MessageStream("s", StreamPositions(), tasks.create_task, capacity=10)
        stream.own(await brokers.reader(), {PLACE: 0})
        asking = tasks.create_task(anext(stream))
        await asyncio.sleep(0)  # it asks, and what reads for it waits for its first turn

        await stream.detach()
        stream.own(await brokers.reader(), {PLACE: 0})

        assert (await asking).value == b"a"
        await stream.close()
