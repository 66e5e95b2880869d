"""Where a group's offsets are kept: in ZooKeeper, in Kafka, or in both while the group migrates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.consumer.zookeeper.brokers import Brokers
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.places import Offsets
from ottla.consumer.zookeeper.registry import Registry
from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetStorage:
    """The offsets of a group, read and written where its configuration says."""

    config: ZookeeperConsumerConfig
    registry: Registry
    brokers: Brokers

    async def read(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return what is committed: the larger where both places have an offset."""
        asked = list(partitions)
        found: Offsets = {}
        if asked and self.config.commits_to_kafka:
            found.update(await self.brokers.committed(self.config.group_id, asked))
        if asked and self.config.commits_to_zookeeper:
            for partition, offset in (await self.registry.offsets(asked)).items():
                found[partition] = max(offset, found.get(partition, offset))
        return found

    async def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit."""
        if offsets and self.config.commits_to_kafka:
            await self.brokers.commit(self.config.group_id, offsets)
        if offsets and self.config.commits_to_zookeeper:
            await self.registry.commit(offsets)
