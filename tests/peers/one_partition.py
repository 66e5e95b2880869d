"""A topic with one partition on a cluster of processes: what becomes of it, and records through aiokafka."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiokafka

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.client.cluster import NoSuchTopic, Partition
from ottla.protocol.topics import TopicPartition

BOUND_S: Final = 90.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a state of other processes, of which no event tells."""
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class OnePartition:
    """Partition 0 of a topic with a name of its own; all waits are bounded by `BOUND_S`."""

    def __init__(self, cluster: BrokerCluster, admin: Admin, servers: str, topic: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.servers = servers
        self.topic = topic
        self.place = TopicPartition(topic, 0)

    async def create(self, *replicas: int) -> None:
        """Create the topic, on these brokers or on three of the cluster's choice, and wait for the ISR."""
        if replicas:
            await self.admin.topics.create(self.topic, assignments={0: list(replicas)})
        else:
            await self.admin.topics.create(self.topic, partitions=1, replication_factor=3)
        await self.in_sync(*(replicas or self.cluster.brokers))

    async def described(self) -> Partition | None:
        """The partition as the cluster describes it, None while it does not know it."""
        try:
            return (await self.admin.topics.describe(self.topic)).partitions[0]
        except (NoSuchTopic, IndexError):
            return None

    async def in_sync(self, *members: int) -> None:
        """Wait until the ISR has these members."""

        async def is_so() -> bool:
            found = await self.described()
            return found is not None and sorted(found.isr) == sorted(members)

        await until(is_so)

    async def leader(self, *, not_node: int = -1) -> int:
        """Wait for a leader other than one broker."""
        found: list[int] = []

        async def is_led() -> bool:
            one = await self.described()
            found[:] = [one.leader] if one is not None and one.leader not in (None, -1, not_node) else []
            return bool(found)

        await until(is_led)
        return found[0]

    async def is_led_by(self, node: int) -> bool:
        found = await self.described()
        return found is not None and found.leader == node

    async def controller(self) -> int:
        """Wait for a controller."""
        found: list[int] = []

        async def is_there() -> bool:
            described = await self.admin.brokers.describe()
            found[:] = [one.id for one in described.brokers if one.is_controller]
            return bool(found)

        await until(is_there)
        return found[0]

    async def produce(self, values: range) -> None:
        """Write records one after the other with acks=all, several in flight; all are acknowledged then."""
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.servers, acks="all", enable_idempotence=True, request_timeout_ms=10_000
        ) as producer:
            sent = [await producer.send(self.topic, b"%d" % one, partition=0) for one in values]
            async with asyncio.timeout(BOUND_S):
                await asyncio.gather(*sent)

    async def consume(self, count: int) -> list[int]:
        """Read the first records."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.servers, auto_offset_reset="earliest", group_id=None
        )
        async with consumer, asyncio.timeout(BOUND_S):
            consumer.assign([aiokafka.TopicPartition(self.topic, 0)])
            return [int((await consumer.getone()).value or b"") for _ in range(count)]

    def directory(self, node: int) -> Path:
        """Where a broker has its replica, if it has one."""
        return Path(self.cluster.brokers[node].data_dir) / f"{self.topic}-0"

    def has_log(self, node: int) -> bool:
        return self.directory(node).exists()

    def log(self, node: int) -> bytes:
        return b"".join(one.read_bytes() for one in sorted(self.directory(node).glob("*.log")))


@asynccontextmanager
async def one_partition(
    cluster: BrokerCluster, topic: str = "", *, without: int = -1
) -> AsyncIterator[OnePartition]:
    """A partition through a client that knows all brokers of the cluster, or all but one."""
    brokers = [one for node, one in cluster.brokers.items() if node != without]
    servers = ",".join(one.bootstrap_servers for one in brokers)
    async with Admin(servers) as admin:
        yield OnePartition(cluster, admin, servers, topic or f"orders-{secrets.token_hex(4)}")
