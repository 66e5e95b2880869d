"""A group of static and dynamic members while its coordinator is killed, sleeps, and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.testing import BrokerCluster
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

pytestmark = pytest.mark.timeout(300)

BOUND_S: Final = 120
TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 6
OFFSETS_PARTITIONS: Final = 4


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    settings = {
        "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
        "replica.lag.time.max.ms": "3000",
    }
    with BrokerCluster(tmp_path, settings) as running:
        yield running


async def coordinator(admin: Admin, group: str, *, but: int = -1) -> int:
    """Wait until the group has a coordinator, another one than `but`; return its broker id."""
    number = partition_for(group, OFFSETS_PARTITIONS)
    async with asyncio.timeout(BOUND_S):
        while True:
            described = await admin.topics.describe(GROUP_METADATA_TOPIC)
            leader = described.partitions[number].leader
            if leader not in (-1, but):
                return leader
            await asyncio.sleep(0.1)


async def replicated(admin: Admin, topic: str) -> None:
    """Wait until all replicas of a topic are in sync."""
    async with asyncio.timeout(BOUND_S):
        while True:
            described = await admin.topics.describe(topic)
            if all(len(one.isr) == 3 for one in described.partitions.values()):
                return
            await asyncio.sleep(0.1)


class Group:
    """Members that commit each record after they took it, and what they promise together."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.members: dict[str, Consumer] = {}
        self.taken: dict[TopicPartition, list[int]] = defaultdict(list)
        self.committed: dict[TopicPartition, int] = {}
        self.again: list[tuple[TopicPartition, int]] = []
        """Records that were delivered although an acknowledged commit is behind them."""
        self._servers = cluster.bootstrap_servers

    def member(self, name: str, *, is_static: bool) -> Consumer:
        consumer = self.members[name] = Consumer(
            TOPIC,
            bootstrap_servers=self._servers,
            group_id=GROUP,
            group_instance_id=name if is_static else None,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=500,
        )
        return consumer

    async def read(self, name: str) -> None:
        consumer = self.members[name]
        while True:
            for partition, records in (await consumer.getmany(timeout_ms=200)).items():
                for record in records:
                    if record.offset < self.committed.get(partition, 0):
                        self.again.append((partition, record.offset))
                    self.taken[partition].append(record.offset)
                positions = {partition: records[-1].offset + 1}
                with contextlib.suppress(Exception):  # between two generations: read again later
                    await consumer.commit(positions)
                    self.committed.update(positions)

    def has_taken(self, count: int) -> bool:
        return sum(len(set(offsets)) for offsets in self.taken.values()) >= count


@asynccontextmanager
async def working(cluster: BrokerCluster) -> AsyncIterator[tuple[Group, Admin]]:
    """A group of two static and two dynamic members that read while the block runs."""
    group = Group(cluster)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(cluster.bootstrap_servers))
        await admin.topics.create(TOPIC, partitions=PARTITIONS, replication_factor=3)
        for name in ("static-1", "static-2", "dynamic-1", "dynamic-2"):
            await stack.enter_async_context(group.member(name, is_static=name.startswith("static")))
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(group.read(name)) for name in group.members]
            yield group, admin
            for task in reading:
                task.cancel()


async def send(producer: Producer, count: int) -> None:
    for number in range(count):
        await producer.send_and_wait(TOPIC, b"%d" % number, partition=number % PARTITIONS)


async def until_taken(group: Group, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while not group.has_taken(count):  # noqa: ASYNC110 - several members take
            await asyncio.sleep(0.05)


async def until_all_own(group: Group) -> None:
    """Wait until all partitions are assigned, to every member at least one."""
    async with asyncio.timeout(BOUND_S):
        while True:
            owned = [one.assignment() for one in group.members.values()]
            if all(owned) and sum(map(len, owned)) == PARTITIONS:
                return
            await asyncio.sleep(0.05)


async def test_a_killed_coordinator_costs_no_commit_and_no_member(
    cluster: BrokerCluster, record_property: Callable[[str, object], None]
) -> None:
    async with working(cluster) as (group, admin), Producer(cluster.bootstrap_servers) as producer:
        await until_all_own(group)
        await replicated(admin, GROUP_METADATA_TOPIC)
        await replicated(admin, TOPIC)
        static_before = {name: one.assignment() for name, one in group.members.items()}
        await send(producer, 60)
        await until_taken(group, 60)
        first = await coordinator(admin, GROUP)

        cluster.brokers[first].kill()
        begun_s = time.monotonic()
        await send(producer, 60)
        await until_taken(group, 120)
        took_s = time.monotonic() - begun_s
        second = await coordinator(admin, GROUP, but=first)
        await until_all_own(group)

        assert {name: one.assignment() for name, one in group.members.items()} == static_before
        cluster.brokers[first].start()
        await replicated(admin, GROUP_METADATA_TOPIC)
        cluster.brokers[second].kill()
        await send(producer, 60)
        await until_taken(group, 180)
        await until_all_own(group)

        assert group.again == []
        assert all(sorted(set(one)) == list(range(30)) for one in group.taken.values())
        async with asyncio.timeout(BOUND_S):
            found = await admin.groups.committed(GROUP, list(group.committed))
        assert {one: offset for one, (offset, _) in found.items()} == group.committed
    record_property("figure", f"60 records written and read {took_s:.1f} s after the kill; all commits kept")


def commit_of(offset: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
    return OffsetCommitRequest(group_id=GROUP, topics=[topic])


async def test_a_commit_that_reaches_a_coordinator_in_its_sleep_is_refused(cluster: BrokerCluster) -> None:
    partition = TopicPartition(TOPIC, 0)
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create(TOPIC, partitions=1, replication_factor=3)
        await admin.groups.commit(GROUP, {partition: 5})
        await replicated(admin, GROUP_METADATA_TOPIC)
        first = await coordinator(admin, GROUP)
        zombie = cluster.brokers[first]
        connection = Connection(Address("127.0.0.1", zombie.port), ClientConfig())
        await connection.connect()
        assert (await connection.send(commit_of(6), OffsetCommitResponse)).topics[0].partitions[
            0
        ].error_code == 0

        zombie.pause()
        try:
            late = asyncio.ensure_future(
                connection.send(commit_of(7), OffsetCommitResponse, timeout_s=BOUND_S)
            )
            await coordinator(admin, GROUP, but=first)
            async with asyncio.timeout(BOUND_S):
                await admin.groups.commit(GROUP, {partition: 9})
        finally:
            zombie.resume()
        answer = await late
        await connection.close()

        assert answer.topics[0].partitions[0].error_code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        )
        await replicated(admin, GROUP_METADATA_TOPIC)
        found = await admin.groups.committed(GROUP, [partition])
        assert found[partition][0] == 9
