"""aiokafka, unmodified."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 60


async def produce_all(servers: str, topic: str, values: list[bytes], **config: Any) -> list[int]:
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5, **config) as producer:
        futures = [await producer.send(topic, value, key=b"k", partition=0) for value in values]
        return [(await future).offset for future in futures]


async def read(servers: str, topic: str, count: int) -> list[Any]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    async with asyncio.timeout(TIMEOUT_S), consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return [await consumer.getone() for _ in range(count)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
async def test_every_codec_arrives_in_order(
    servers: str, fresh: Callable[[str], str], codec: str | None, idempotent: bool
) -> None:
    topic = fresh("aio-codec")
    values = [f"value {number} {'y' * 50}".encode() for number in range(300)]

    offsets = await produce_all(servers, topic, values, compression_type=codec, enable_idempotence=idempotent)
    records = await read(servers, topic, 300)

    assert offsets == list(range(300))
    assert [record.value for record in records] == values


async def test_headers_and_timestamps_come_back(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("aio-headers")
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait(
            topic, b"v", partition=0, headers=[("h", b"1")], timestamp_ms=1_600_000_000_000
        )

    record = (await read(servers, topic, 1))[0]

    assert record.headers == (("h", b"1"),)
    assert record.timestamp == 1_600_000_000_000


async def test_members_come_and_go_and_every_record_is_read_by_the_group(
    servers: str, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("aio-group"), fresh("group")
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 4, 1)])
    await admin.close()
    config: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "enable_auto_commit": False,
    }
    async with asyncio.timeout(TIMEOUT_S):
        first, second = AIOKafkaConsumer(topic, **config), AIOKafkaConsumer(topic, **config)
        await first.start()
        await second.start()
        while sorted((len(first.assignment()), len(second.assignment()))) != [2, 2]:
            await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
        await second.stop()
        while len(first.assignment()) != 4:
            await first.getmany(timeout_ms=50)

        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            for number in range(40):
                await producer.send_and_wait(topic, b"%d" % number, partition=number % 4)
        values: set[bytes] = set()
        while len(values) < 40:
            for records in (await first.getmany(timeout_ms=200)).values():
                values |= {record.value for record in records}
        await first.commit()
        await first.stop()

    assert values == {b"%d" % number for number in range(40)}


async def test_a_static_member_keeps_its_partitions_over_a_restart(
    servers: str, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("aio-static"), fresh("group")
    await produce_all(servers, topic, [b"x"])
    config: dict[str, Any] = {"bootstrap_servers": servers, "group_id": group, "group_instance_id": "one"}
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(2):
            consumer = AIOKafkaConsumer(topic, **config)
            await consumer.start()
            while not consumer.assignment():
                await consumer.getmany(timeout_ms=50)
            assert len(consumer.assignment()) == 3
            await consumer.stop()


async def test_offsets_by_time_and_at_the_ends(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("aio-time")
    begin_ms = int(time.time() * 1_000) - 60_000  # what is older than a week is deleted, at any moment
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(5):
            await producer.send_and_wait(topic, b"x", partition=0, timestamp_ms=begin_ms + number * 100)
    part = TopicPartition(topic, 0)
    async with asyncio.timeout(TIMEOUT_S), AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
        found = await consumer.offsets_for_times({part: begin_ms + 150})
        assert found[part].offset == 2
        assert await consumer.beginning_offsets([part]) == {part: 0}
        assert await consumer.end_offsets([part]) == {part: 5}
