"""Offsets that are no records: a group that handled everything has no lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams import Processor

if TYPE_CHECKING:
    from sdk.conftest import Cluster

WAIT_S = 60


@pytest.fixture
async def topic(cluster: Cluster, admin: Admin, fresh: Callable[[str], str]) -> str:
    name = fresh("orders")
    await admin.topics.create(name, partitions=1, replication_factor=1)
    return name


@pytest.mark.parametrize(("isolation", "end"), [("read_uncommitted", 2), ("read_committed", 4)])
async def test_what_ends_a_partition_without_a_record_is_committed_too(
    cluster: Cluster, topic: str, fresh: Callable[[str], str], isolation: str, end: int
) -> None:
    """A marker that comes after its record was handled; an aborted transaction and its marker."""
    is_handled = asyncio.Event()
    group = fresh("billing")

    async def handle(record: ConsumerRecord) -> None:
        is_handled.set()

    async with (
        asyncio.timeout(WAIT_S),
        Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer,
        Processor(
            handle, topic, group_id=group, bootstrap_servers=cluster.bootstrap_servers,
            commit_interval_ms=50, isolation_level=isolation,
        ),
    ):  # fmt: skip
        if isolation == "read_uncommitted":
            async with producer.transaction():
                await producer.send_and_wait(topic, b"one", partition=0)
                await is_handled.wait()
        else:
            async with producer.transaction():
                await producer.send(topic, b"one", partition=0)
            await is_handled.wait()
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted", partition=0)
            await producer.abort_transaction()
        await until_committed(cluster, group, TopicPartition(topic, 0), end)


async def until_committed(cluster: Cluster, group: str, partition: TopicPartition, end: int) -> None:
    async with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id=group) as reader:
        while True:
            found = (await reader.committed_offsets([partition])).get(partition)
            if found is not None and found.offset == end:
                return
            await asyncio.sleep(0.05)
