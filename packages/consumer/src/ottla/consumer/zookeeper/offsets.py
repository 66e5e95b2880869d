"""Where a group's offsets are kept: in ZooKeeper, in Kafka, or in both while the group migrates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ottla.client.errors import ClientError
from ottla.consumer.zookeeper.brokers import Brokers
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.places import Offsets, Places
from ottla.consumer.zookeeper.registry import Registry
from ottla.consumer.zookeeper.streams import MessageStream
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.errors import ZooKeeperError

log = logging.getLogger(__name__)


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


class Commits:
    """Commits the places of some streams, one commit after the other: an older one overtakes none."""

    def __init__(
        self, places: Places, streams: Collection[MessageStream], storage: Callable[[], OffsetStorage]
    ) -> None:
        self._places = places
        self._streams = streams
        self._storage = storage
        self._one_at_a_time = asyncio.Lock()

    async def now(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`, where None stands for everything that was given out."""
        await self._write(lambda: self._places.uncommitted(given=True) if offsets is None else offsets)

    async def finished(self, only: Collection[TopicPartition] | None = None) -> None:
        """Commit what is finished and was not committed yet, of some partitions or of all."""

        def due() -> Offsets:
            found = self._places.uncommitted()
            return found if only is None else {each: found[each] for each in only if each in found}

        await self._write(due)

    async def regularly(self, interval_ms: int, may: Callable[[], bool]) -> None:
        """Commit what is finished, for ever, while one `may`; what fails is tried again the next time."""
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
                self._places.committed(offsets)
