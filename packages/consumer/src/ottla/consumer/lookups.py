"""Finding offsets: by time, and by the epoch of a leader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from ottla.client.admin.offsets import by_topic
from ottla.client.cluster import Cluster, is_stale, raise_for
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.topics import TopicPartition

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
    """Where the largest epoch ended that is not above the one asked for; -1 where nothing is known."""

    leader_epoch: int
    end_offset: int


class Lookups:
    """Questions to the leaders of partitions, each asked until it is answered or fails for good."""

    def __init__(self, cluster: Cluster, *, read_committed: bool) -> None:
        self._cluster = cluster
        self._isolation_level = int(read_committed)

    async def by_time(
        self, wanted: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first records at or after times in ms, EARLIEST, or LATEST; offset -1: none."""

        async def ask() -> dict[TopicPartition, OffsetAndTimestamp]:
            return await self._at_leaders(wanted, self._by_time_on)

        return await self._cluster.retry("finding offsets", ask, timeout_s=timeout_s)

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Like `by_time`, but for times after the last record the end."""
        found = {partition: each.offset for partition, each in (await self.by_time(wanted)).items()}
        late = {
            partition: LATEST
            for partition, offset in found.items()
            if offset == NOT_FOUND and wanted[partition] >= 0
        }
        if late:
            found |= {partition: each.offset for partition, each in (await self.by_time(late)).items()}
        return found

    async def epoch_ends(
        self, wanted: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, EpochEnd]:
        """Return where epochs ended, given the leader's epoch and the one in question for each partition.

        Raises UnsupportedByBroker before Kafka 0.11.
        """
        return await self._at_leaders(wanted, self._epoch_ends_on)

    async def _at_leaders(
        self,
        wanted: Mapping[TopicPartition, W],
        on: Callable[[int, Mapping[TopicPartition, W]], Awaitable[dict[TopicPartition, T]]],
    ) -> dict[TopicPartition, T]:
        by_leader: dict[int, dict[TopicPartition, W]] = defaultdict(dict)
        for partition, value in wanted.items():
            leader, _ = await self._cluster.leader(partition)
            by_leader[leader][partition] = value
        found: dict[TopicPartition, T] = {}
        try:
            for leader, part in by_leader.items():
                found |= await on(leader, part)
        except Exception as error:
            if is_stale(error):
                self._cluster.forget(*{partition.topic for partition in wanted})
            raise
        return found

    async def _by_time_on(
        self, node_id: int, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=each.partition, timestamp=wanted[each])
                    for each in partitions
                ],
            )
            for name, partitions in by_topic(wanted).items()
        ]
        request = ListOffsetsRequest(
            replica_id=NO_REPLICA, isolation_level=self._isolation_level, topics=topics
        )
        answer = await self._cluster.send(node_id, request, ListOffsetsResponse)
        found: dict[TopicPartition, OffsetAndTimestamp] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                raise_for(each.error_code, f"{partition}: the leader refused to list offsets")
                found[partition] = _found(each)
        return found

    async def _epoch_ends_on(
        self, node_id: int, wanted: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, EpochEnd]:
        topics = [
            OffsetForLeaderTopic(
                topic=name,
                partitions=[
                    OffsetForLeaderPartition(
                        partition=each.partition,
                        current_leader_epoch=wanted[each][0],
                        leader_epoch=wanted[each][1],
                    )
                    for each in partitions
                ],
            )
            for name, partitions in by_topic(wanted).items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=NO_REPLICA, topics=topics)
        answer = await self._cluster.send(node_id, request, OffsetForLeaderEpochResponse)
        found: dict[TopicPartition, EpochEnd] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic, each.partition)
                raise_for(each.error_code, f"{partition}: the leader refused to tell of its epochs")
                found[partition] = EpochEnd(each.leader_epoch, each.end_offset)
        return found


def _found(answer: ListOffsetsPartitionResponse) -> OffsetAndTimestamp:
    # Version 0 gives a list, newest first.
    offset = answer.old_style_offsets[0] if answer.old_style_offsets else answer.offset
    return OffsetAndTimestamp(offset, answer.timestamp, answer.leader_epoch)
