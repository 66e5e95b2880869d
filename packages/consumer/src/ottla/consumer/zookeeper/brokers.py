"""The brokers, as a group in ZooKeeper uses them: readers, bounds of partitions, and offsets.

Offsets are stored in ZooKeeper, in Kafka, or in both during a migration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ottla.client.cluster import Cluster
from ottla.client.config import Address
from ottla.client.errors import ClientError
from ottla.client.group_metadata import commit_without_member
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.consumer import Consumer
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, OffsetLookups
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper.config import ZookeeperConsumerConfig
from ottla.consumer.zookeeper.group_znodes import GroupZnodes
from ottla.consumer.zookeeper.streams import MessageStream, Offsets, Reader, StreamPositions
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition, by_topic
from ottla.zookeeper.errors import ZooKeeperError

POLL_MS = 1_000
RECORDS_AT_ONCE = 500

log = logging.getLogger(__name__)


class Brokers(Protocol):
    """The part of a cluster's brokers that the connector uses."""

    async def reader(self) -> Reader:
        """Return a new reader; it is closed together with the brokers."""

    async def bounds(
        self, partitions: Iterable[TopicPartition], *, smallest: bool
    ) -> Mapping[TopicPartition, int]:
        """Return the first or the end offsets of partitions."""

    async def committed(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets stored in Kafka; partitions without one are left out."""

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets in Kafka."""


class ConsumerReader:
    """Reads with a `Consumer` that has no group."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def assign(self, partitions: Mapping[TopicPartition, int | None]) -> None:
        """Assign partitions; each starts at its offset if one is given, else continues at its position."""
        self._consumer.assign(partitions)
        for partition, offset in partitions.items():
            if offset is not None:
                self._consumer.seek(partition, offset)

    async def next_records(self) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]:
        """Return records as soon as there are some; after a timeout, none."""
        return await self._consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_AT_ONCE)


class ClusterBrokers:
    """`Brokers` of a real cluster; use it as an async context manager."""

    def __init__(self, addresses: Iterable[Address], config: ZookeeperConsumerConfig) -> None:
        self._addresses = [str(address) for address in addresses]
        self._config = config
        self._cluster = Cluster(self._addresses, config.client())
        self._offsets = OffsetLookups(self._cluster, read_committed=False)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._cluster)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def reader(self) -> ConsumerReader:
        """Return a new reader; it is closed together with the brokers."""
        consumer = Consumer(bootstrap_servers=self._addresses, config=self._consumer_config())
        return ConsumerReader(await self._stack.enter_async_context(consumer))

    def _consumer_config(self) -> ConsumerConfig:
        smallest = self._config.smallest
        return ConsumerConfig(
            auto_offset_reset="none" if smallest is None else "earliest" if smallest else "latest",
            fetch_min_bytes=self._config.fetch_min_bytes,
            fetch_max_wait_ms=self._config.fetch_wait_max_ms,
            fetch_max_bytes=self._config.fetch_max_bytes,
            max_partition_fetch_bytes=self._config.fetch_message_max_bytes,
            client=self._config.client(),
        )

    async def bounds(
        self, partitions: Iterable[TopicPartition], *, smallest: bool
    ) -> dict[TopicPartition, int]:
        """Return the first or the end offsets of partitions."""
        return await self._offsets.offsets(dict.fromkeys(partitions, EARLIEST if smallest else LATEST))

    async def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets stored in Kafka; partitions without one are left out."""
        topics = [
            OffsetFetchRequestTopic(
                name=topic, partition_indexes=[partition.partition for partition in found]
            )
            for topic, found in by_topic(partitions).items()
        ]
        request = OffsetFetchRequest(group_id=group, topics=topics)

        async def ask() -> dict[TopicPartition, int]:
            answer = await self._cluster.send_to_coordinator(group, request, OffsetFetchResponse)
            self._cluster.raise_coordinator_error(group, answer.error_code)
            found: dict[TopicPartition, int] = {}
            for topic in answer.topics:
                for partition in topic.partitions:
                    self._cluster.raise_coordinator_error(group, partition.error_code)
                    if partition.committed_offset >= 0:
                        found[TopicPartition(topic.name, partition.partition_index)] = (
                            partition.committed_offset
                        )
            return found

        return await self._cluster.retry(f"reading the offsets of group {group!r}", ask)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets in Kafka, without being a member of the group there."""
        await commit_without_member(self._cluster, group, offsets)


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
                log.warning("an automatic commit failed", extra={"error": str(error)})

    async def _write(self, due: Callable[[], Mapping[TopicPartition, int]]) -> None:
        async with self._one_at_a_time:
            for stream in self._streams:
                stream.note_progress()
            offsets = due()
            if offsets:
                await self._storage().write(offsets)
                self._positions.committed(offsets)
