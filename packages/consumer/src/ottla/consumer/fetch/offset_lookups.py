"""Look up offsets at the leaders: by timestamp (ListOffsets), and the end of a leader epoch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.client.cluster import Cluster, is_stale
from ottla.client.errors import ClientError
from ottla.client.retry import is_retriable
from ottla.consumer.errors import named_error
from ottla.protocol.errors import (
    ErrorCode,
    KafkaError,
    LeaderNotAvailable,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.topics import TopicPartition, by_topic

T = TypeVar("T")
W = TypeVar("W")

EARLIEST: Final = -2
LATEST: Final = -1
NO_REPLICA: Final = -1
NOT_FOUND: Final = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after some time: its offset, its own time, and the epoch of its leader."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, as other clients call it."""
        return self.timestamp_ms


class EpochEnd(NamedTuple):
    """The end offset of the largest leader epoch at or below the one asked for; -1 if unknown."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LookupResults(Generic[T]):
    """Answers and errors of leaders, by partition."""

    found: dict[TopicPartition, T]
    failed: dict[TopicPartition, ClientError | KafkaError]

    def note(self, partition: TopicPartition, code: int, found: T) -> None:
        """Add the answer of a partition, or its error."""
        if code == ErrorCode.NONE:
            self.found[partition] = found
        else:
            self.failed[partition] = named_error(str(partition), code, partition.topic)

    def raise_worst(self) -> None:
        """Raise an error, if there is one; those that a retry does not help take precedence."""
        if self.failed:
            raise min(self.failed.values(), key=is_retriable)


class OffsetLookups:
    """Requests for offsets to the leaders of partitions: with retries, or once with errors by partition."""

    def __init__(self, cluster: Cluster, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._isolation_level = int(read_committed)

    async def by_time(
        self, wanted: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first record at or after a timestamp in ms, EARLIEST or LATEST; offset -1: none."""
        found: dict[TopicPartition, OffsetAndTimestamp] = {}

        async def ask() -> dict[TopicPartition, OffsetAndTimestamp]:
            missing = {partition: time for partition, time in wanted.items() if partition not in found}
            results = await self.once_by_time(missing)
            found.update(results.found)
            results.raise_worst()
            return found

        return await self._cluster.retry("finding offsets", ask, timeout_s=timeout_s)

    async def once_by_time(self, wanted: Mapping[TopicPartition, int]) -> LookupResults[OffsetAndTimestamp]:
        """Send the request of `by_time` once; errors are returned by partition."""
        return await self._at_leaders(wanted, self._by_time_on)

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return offsets like `by_time`; for timestamps after the last record, the end offset."""
        found = {partition: answer.offset for partition, answer in (await self.by_time(wanted)).items()}
        late = dict.fromkeys(
            (partition for partition, offset in found.items() if offset == NOT_FOUND), LATEST
        )
        if late:
            found |= {partition: answer.offset for partition, answer in (await self.by_time(late)).items()}
        return found

    async def once_epoch_ends(
        self, wanted: Mapping[TopicPartition, tuple[int, int]]
    ) -> LookupResults[EpochEnd]:
        """Look up the end of an epoch once, given the current leader epoch and that epoch by partition.

        Errors are returned by partition: UnsupportedByBroker before Kafka 0.11.
        """
        return await self._at_leaders(wanted, self._epoch_ends_on)

    async def _at_leaders(
        self,
        wanted: Mapping[TopicPartition, W],
        on: Callable[[int, Mapping[TopicPartition, W], LookupResults[T]], Awaitable[None]],
    ) -> LookupResults[T]:
        """Send to all leaders concurrently: one that does not answer does not fail the others."""
        results: LookupResults[T] = LookupResults({}, {})

        async def ask(leader: int, part: Mapping[TopicPartition, W]) -> None:
            try:
                await on(leader, part, results)
            except (ClientError, KafkaError) as error:
                results.failed.update(dict.fromkeys(part, error))

        by_leader = await self._by_leader(wanted, results)
        async with asyncio.TaskGroup() as tasks:
            for leader, part in by_leader.items():
                tasks.create_task(ask(leader, part))
        stale = {partition.topic for partition, error in results.failed.items() if is_stale(error)}
        self._cluster.forget(*stale)
        return results

    async def _by_leader(
        self, wanted: Mapping[TopicPartition, W], results: LookupResults[T]
    ) -> dict[int, dict[TopicPartition, W]]:
        unknown = {partition.topic for partition in wanted if self._cluster.known_leader(partition) is None}
        by_leader: dict[int, dict[TopicPartition, W]] = defaultdict(dict)
        try:
            if unknown:
                await self._cluster.refresh(sorted(unknown))
        except (ClientError, KafkaError) as error:
            results.failed.update({partition: error for partition in wanted if partition.topic in unknown})
        for partition, value in wanted.items():
            leader = self._cluster.known_leader(partition)
            if leader is not None:
                by_leader[leader][partition] = value
            else:
                results.failed.setdefault(partition, self._why_leaderless(partition))
        return by_leader

    def _why_leaderless(self, partition: TopicPartition) -> KafkaError:
        topic = self._cluster.known_topic(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return UnknownTopicOrPartition(f"there is no partition {partition}")
        return LeaderNotAvailable(f"{partition} has no leader")

    async def _by_time_on(
        self, node_id: int, wanted: Mapping[TopicPartition, int], results: LookupResults[OffsetAndTimestamp]
    ) -> None:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=partition.partition, timestamp=wanted[partition])
                    for partition in partitions
                ],
            )
            for name, partitions in by_topic(wanted).items()
        ]
        request = ListOffsetsRequest(
            replica_id=NO_REPLICA, isolation_level=self._isolation_level, topics=topics
        )
        leader = await self._cluster.connection_to_leader(node_id)
        answer = await leader.send(request, ListOffsetsResponse)
        for topic in answer.topics:
            for data in topic.partitions:
                partition = TopicPartition(topic.name, data.partition_index)
                results.note(partition, data.error_code, _found(data))

    async def _epoch_ends_on(
        self, node_id: int, wanted: Mapping[TopicPartition, tuple[int, int]], results: LookupResults[EpochEnd]
    ) -> None:
        topics = [
            OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=partition.partition,
                        current_leader_epoch=wanted[partition][0],
                        leader_epoch=wanted[partition][1],
                    )
                    for partition in partitions
                ],
            )
            for name, partitions in by_topic(wanted).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=NO_REPLICA, topics=topics)
        leader = await self._cluster.connection_to_leader(node_id)
        answer = await leader.send(request, OffsetForLeaderEpochResponse)
        for topic in answer.topics:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition)
                results.note(partition, data.error_code, EpochEnd(data.leader_epoch, data.end_offset))


def _found(answer: ListOffsetsPartitionResponse) -> OffsetAndTimestamp:
    # Version 0 gives a list, newest first.
    offset = answer.old_style_offsets[0] if answer.old_style_offsets else answer.offset
    return OffsetAndTimestamp(offset, answer.timestamp, answer.leader_epoch)
