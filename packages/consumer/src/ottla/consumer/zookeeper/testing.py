"""For tests: groups in ZooKeeper, with an ensemble and brokers in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ottla.client.config import Address
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.connector import ZookeeperConsumerConnector
from ottla.consumer.zookeeper.group_znodes import GroupZnodes
from ottla.protocol.errors import LeaderNotAvailable
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import Session
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import BrokerRegistration, Endpoint, TopicAssignment


class MemoryBrokers:
    """Brokers in memory: `logs` of partitions, and `stored` offsets; with `refuses`, commits fail."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.stored: dict[TopicPartition, int] = {}
        self.grown = asyncio.Event()
        self.refuses = False
        self.opened: list[str] = []

    def append(self, topic: str, partition: int, *values: bytes) -> None:
        """Write records to a partition."""
        self.logs[TopicPartition(topic, partition)] += values
        self.grown.set()

    @asynccontextmanager
    async def open(
        self, addresses: Iterable[Address], config: ZookeeperConsumerConfig
    ) -> AsyncIterator[MemoryBrokers]:
        """Give these brokers to a connector."""
        self.opened += [str(address) for address in addresses]
        yield self

    async def reader(self) -> MemoryReader:
        """Return a new reader."""
        return MemoryReader(self)

    async def bounds(
        self, partitions: Iterable[TopicPartition], *, smallest: bool
    ) -> Mapping[TopicPartition, int]:
        """Return the first or the end offsets of partitions."""
        return {partition: 0 if smallest else len(self.logs[partition]) for partition in partitions}

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the stored offsets."""
        return {partition: self.stored[partition] for partition in partitions if partition in self.stored}

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets."""
        if self.refuses:
            raise LeaderNotAvailable("refused")
        self.stored.update(offsets)


class MemoryReader:
    """Reads three records at a time, one partition after the other."""

    def __init__(self, brokers: MemoryBrokers) -> None:
        self._brokers = brokers
        self._positions: dict[TopicPartition, int] = {}

    def assign(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Read these partitions."""
        self._positions = {
            partition: self._positions.get(partition, 0) if start is None else start
            for partition, start in partitions.items()
        }
        self._brokers.grown.set()

    async def next_records(self) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records as soon as there are some."""
        while True:
            for partition, position in self._positions.items():
                values = self._brokers.logs[partition][position : position + 3]
                if values:
                    self._positions[partition] = position + len(values)
                    return {
                        partition: [_record(partition, position + n, value) for n, value in enumerate(values)]
                    }
            self._brokers.grown.clear()
            await self._brokers.grown.wait()


def _record(partition: TopicPartition, offset: int, value: bytes) -> ConsumerRecord:
    return ConsumerRecord(partition.topic, partition.partition, offset, -1, None, value, ())


class MemoryGroup:
    """A cluster of one broker in memory, and connectors of a group `g` in it."""

    def __init__(self) -> None:
        self.ensemble = MemoryEnsemble()
        self.logs = MemoryBrokers()
        self.sessions: dict[str, MemorySession] = {}
        self.admin = self.ensemble.session()

    async def prepare(self, **topics: int) -> None:
        """Register the broker and make topics with so many partitions."""
        await self.admin.wait_connected()
        await self.move_broker(9092)
        for name, partitions in topics.items():
            await self.make_topic(name, partitions)

    async def move_broker(self, port: int) -> None:
        """Register the broker at a port, and nowhere else."""
        endpoint = Endpoint("PLAINTEXT", "127.0.0.1", port)
        broker = BrokerRegistration(1, (endpoint,), {"PLAINTEXT": "PLAINTEXT"}, 0)
        if await self.admin.exists(broker.path):
            await self.admin.delete(broker.path)
        await self.admin.create(broker.path, broker.encode(), make_parents=True)

    async def make_topic(self, name: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        topic = TopicAssignment(name, dict.fromkeys(range(partitions), (1,)))
        if await self.admin.exists(topic.path):
            await self.admin.set(topic.path, topic.encode())
        else:
            await self.admin.create(topic.path, topic.encode(), make_parents=True)

    def connector(
        self, name: str, *, listener: object | None = None, **settings: Any
    ) -> ZookeeperConsumerConnector:
        """Return a connector that is not entered yet; its session is in `sessions` afterwards."""

        @asynccontextmanager
        async def open_session(config: ZookeeperConsumerConfig) -> AsyncIterator[Session]:
            async with self.ensemble.session() as session:
                self.sessions[name] = session
                yield session

        config = ZookeeperConsumerConfig(
            **{
                "group_id": "g",
                "zookeeper_connect": "memory",
                "consumer_id": name,
                "auto_offset_reset": "smallest",
                "rebalance_backoff_ms": 100,
                **settings,
            }
        )
        return ZookeeperConsumerConnector(
            config, listener=listener, open_session=open_session, open_brokers=self.logs.open
        )

    async def owners(self, topic: str, partitions: int) -> dict[int, str]:
        """Return the owners of a topic's partitions."""
        asked = [TopicPartition(topic, number) for number in range(partitions)]
        found = await GroupZnodes(self.admin, 0, "g").owners(asked)
        return {partition.partition: owner for partition, owner in found.items()}

    async def offset(self, topic: str, partition: int) -> int:
        """Return the offset in ZooKeeper."""
        return int((await self.admin.get(paths.consumer_offset("g", topic, partition)))[0])
