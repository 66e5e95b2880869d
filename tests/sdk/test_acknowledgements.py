"""Acknowledgements that senders return, and the memory of records that they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Acknowledgement, Producer, RecordTooLarge, SerializationFailed


async def test_a_waiter_that_gives_up_does_not_take_the_others_with_it(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("waiters")
    async with Producer(cluster.bootstrap_servers, linger_ms=300) as producer:
        await producer.partitions_for(topic)
        first, second = [await producer.send(topic, b"x", partition=0) for _ in range(2)]
        many = await producer.send_many(topic, [b"a", b"b"], partition=0)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(many, 0.01)

        assert (await second).offset == (await first).offset + 1
        assert [each.result().offset for each in await many] == [2, 3]


async def test_text_times_partitions_and_headers_arrive_as_they_were_given(
    cluster: Any, fresh: Callable[[str], str], admin: Admin
) -> None:
    topic = fresh("plain")
    await admin.topics.create(topic, partitions=3)
    async with Producer(cluster.bootstrap_servers, max_block_ms=500) as producer:
        await producer.partitions_for(topic)
        by_key = await (await producer.send(topic, "ů", key="josef"))
        as_bytes = await (await producer.send(topic, "ů".encode(), key=b"josef"))
        for send in (producer.send, producer.send_nowait):
            sent = send(topic, None, "k", 2, 1_600_000_000_000, [("h", b"v"), ("n", None)])
            await (sent if isinstance(sent, Acknowledgement) else await sent)
        with pytest.raises(SerializationFailed):
            await producer.send(topic, "\ud800")
        with pytest.raises(ValueError, match="0 to 2"):
            await producer.send(topic, "x", partition=3)
        with pytest.raises(RecordTooLarge):
            producer.send_nowait(topic, "x" * 2_000_000)

    assert by_key.partition == as_bytes.partition
    async with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as reader:
        records: list[ConsumerRecord[Any, Any]] = [await reader.getone() for _ in range(4)]
    assert [each.value for each in records if each.key == b"josef"] == ["ů".encode()] * 2
    plain = [each for each in records if each.key == b"k"]
    assert [(each.partition, each.value, each.timestamp_ms, each.headers) for each in plain] == [
        (2, None, 1_600_000_000_000, (("h", b"v"), ("n", None)))
    ] * 2


async def test_a_loop_of_sends_with_a_serializer_leaves_others_their_turn(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("turns")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with Producer(cluster.bootstrap_servers, value_serializer="json", linger_ms=50) as producer:
        await producer.partitions_for(topic)
        counting = asyncio.create_task(count_turns())
        for _ in range(20_000):
            await producer.send(topic, "x" * 100)
        counting.cancel()

    assert turns > 10
