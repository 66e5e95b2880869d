"""Store a group's offsets in ZooKeeper, in Kafka, or in both during a migration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ottla.client.errors import ClientError
from ottla.consumer.zookeeper.brokers import Brokers
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.group_znodes import GroupZnodes
from ottla.consumer.zookeeper.stream_positions import Offsets, StreamPositions
from ottla.consumer.zookeeper.streams import MessageStream
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.errors import ZooKeeperError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OffsetStorage:
    """The offset storage of a group, as its configuration says."""

    config: ZookeeperConsumerConfig
    znodes: GroupZnodes
    brokers: Brokers

    async def read(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the committed offsets; the larger one where both storages have one."""
        asked = list(partitions)
        found: Offsets = {}
        if asked and self.config.commits_to_kafka:
            found.update(await self.brokers.committed(self.config.group_id, asked))
        if asked and self.config.commits_to_zookeeper:
            for partition, offset in (await self.znodes.offsets(asked)).items():
                found[partition] = max(offset, found.get(partition, offset))
        return found

    async def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets."""
        if offsets and self.config.commits_to_kafka:
            await self.brokers.commit(self.config.group_id, offsets)
        if offsets and self.config.commits_to_zookeeper:
            await self.znodes.commit(offsets)


class StreamCommits:
    """Commits the positions of streams, one commit after the other, so that no older one overtakes."""

    def __init__(
        self,
        positions: StreamPositions,
        streams: Collection[MessageStream],
        storage: Callable[[], OffsetStorage],
    ) -> None:
        self._positions = positions
        self._streams = streams
        self._storage = storage
        self._one_at_a_time = asyncio.Lock()

    async def now(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`; None commits everything that was delivered."""
        await self._write(lambda: self._positions.uncommitted(delivered=True) if offsets is None else offsets)

    async def finished(self, only: Collection[TopicPartition] | None = None) -> None:
        """Commit finished offsets that are not committed yet, of all partitions or some."""

        def due() -> Offsets:
            found = self._positions.uncommitted()
            return (
                found
                if only is None
                else {partition: found[partition] for partition in only if partition in found}
            )

        await self._write(due)

    async def regularly(self, interval_ms: int, may: Callable[[], bool]) -> None:
        """Commit finished offsets at an interval, while `may` allows it; a failed commit is repeated."""
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            if not may():
                continue
            try:
                await self.finished()
            except (ZooKeeperError, ClientError, KafkaError) as error:
                log.warning("an automatic commit failed: %s", error)

    async def _write(self, due: Callable[[], Mapping[TopicPartition, int]]) -> None:
        async with self._one_at_a_time:
            for stream in self._streams:
                stream.note_progress()
            offsets = due()
            if offsets:
                await self._storage().write(offsets)
                self._positions.committed(offsets)
