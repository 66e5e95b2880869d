"""Batches that unfold to more than a consumer decompresses: raised once, and read with a larger limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer, OversizedBatch, TopicPartition
from ottla.producer import Producer

Take: TypeAlias = Callable[[Consumer], Awaitable[list[bytes]]]

BOUND_S = 60.0
LARGE = bytes(3 << 20)


class Servers(Protocol):
    """A broker under test."""

    bootstrap_servers: str


async def by_iteration(consumer: Consumer) -> list[bytes]:
    return [(await anext(consumer)).value or b""]


async def in_lists(consumer: Consumer) -> list[bytes]:
    found = await consumer.getmany(timeout_ms=1_000)
    return [record.value or b"" for records in found.values() for record in records]


async def in_columns(consumer: Consumer) -> list[bytes]:
    table: Any = await consumer.fetch_arrow(timeout_ms=1_000)
    values: list[bytes] = table.column("value").to_pylist()
    return values


WAYS = [by_iteration, in_lists, in_columns]


async def written(servers: str, topic: str) -> TopicPartition:
    """Write a small record, one that unfolds to 3 MiB, and a small one, each as a batch."""
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=1, replication_factor=1)
    async with Producer(
        bootstrap_servers=servers, compression_type="zstd", linger_ms=0, max_request_size=8 << 20
    ) as producer:
        for value in (b"before", LARGE, b"behind"):
            await producer.send_and_wait(topic, value, partition=0)
    return TopicPartition(topic, 0)


async def read(consumer: Consumer, take: Take) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Read three records; return those that came, and the offsets of batches passed over by a seek."""
    values: list[bytes] = []
    passed: list[tuple[int, int]] = []
    async with asyncio.timeout(BOUND_S):
        while len(values) + len(passed) < 3:
            try:
                values += await take(consumer)
            except OversizedBatch as error:
                passed.append((error.offset, error.next_offset))
                consumer.seek(error.partition, error.next_offset)
    return values, passed


@pytest.mark.parametrize("take", WAYS)
async def test_a_batch_above_the_limit_is_raised_once_and_read_with_a_larger_one(
    cluster: Servers, fresh: Callable[[str], str], take: Take
) -> None:
    partition = await written(cluster.bootstrap_servers, fresh("oversized"))
    for most_bytes, expected in (
        (1 << 20, ([b"before", b"behind"], [(1, 2)])),
        (4 << 20, ([b"before", LARGE, b"behind"], [])),
    ):
        async with Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            max_decompressed_batch_bytes=most_bytes,
        ) as consumer:
            consumer.assign([partition])
            assert await read(consumer, take) == expected
