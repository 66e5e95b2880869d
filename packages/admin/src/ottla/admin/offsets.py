"""Offsets of partitions: find the first, the last, or one by timestamp; delete records."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final

from ottla.client.cluster import Cluster, is_stale, raise_for
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition, by_topic

EARLIEST: Final = -2
LATEST: Final = -1
NO_REPLICA: Final = -1
REACHABLE_S: Final = 3.0
_AT_ONCE: Final = 1_000


class Offsets:
    """Offsets of partitions, requested from their leaders."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return for each partition the offset that belongs to EARLIEST, LATEST, or a timestamp in ms.

        For a timestamp it is the offset of the first record at or after it, or the end of the log.
        """

        async def ask() -> dict[TopicPartition, int]:
            return await self._at_leaders(wanted, self._find_on, read_committed)

        found = await self._cluster.retry("finding offsets", ask)
        late = {partition: LATEST for partition, offset in found.items() if offset < 0}
        if late and not all(wanted[partition] == LATEST for partition in late):
            found |= await self.find(late, read_committed=read_committed)
        return found

    async def find_reachable(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        timeout_s: float = REACHABLE_S,
        read_committed: bool = False,
    ) -> dict[TopicPartition, int]:
        """Return EARLIEST or LATEST of the partitions whose leaders answer at once; leave out the others.

        The leaders are asked all together, each a thousand partitions at a time, which holds the loop up for
        some milliseconds only, and `timeout_s` bounds the wait. With `read_committed`
        the latest is the last stable offset, behind which readers of committed records do not get.
        """
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for number, (partition, which) in enumerate(wanted.items(), 1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if (leader := self._cluster.known_leader(partition)) is not None:
                by_leader[leader][partition] = which
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._try(leader, part, timeout_s, read_committed))
                for leader, part in by_leader.items()
            ]
        return {partition: offset for task in asked for partition, offset in task.result().items()}

    async def _try(
        self, leader: int, wanted: Mapping[TopicPartition, int], timeout_s: float, read_committed: bool
    ) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        left = iter(wanted.items())
        try:
            async with asyncio.timeout(timeout_s):
                while some := dict(islice(left, _AT_ONCE)):
                    found |= await self._find_on(leader, some, read_committed)
        except (ClientError, KafkaError, TimeoutError):
            pass
        return found

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete all records below an offset, -1 for all records; return the new log start offsets.

        Raises OffsetOutOfRange past the end, PolicyViolation for a compacted topic.
        """

        async def ask() -> dict[TopicPartition, int]:
            return await self._at_leaders(before, self._delete_on, False)

        return await self._cluster.retry("deleting records", ask)

    async def _at_leaders(
        self,
        values: Mapping[TopicPartition, int],
        on: Callable[[int, Mapping[TopicPartition, int], bool], Awaitable[dict[TopicPartition, int]]],
        flag: bool,
    ) -> dict[TopicPartition, int]:
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for partition, value in values.items():
            leader, _ = await self._cluster.leader(partition)
            by_leader[leader][partition] = value
        results: dict[TopicPartition, int] = {}
        try:
            for leader, part in by_leader.items():
                results |= await on(leader, part, flag)
        except Exception as error:
            if is_stale(error):
                self._cluster.forget(*{partition.topic for partition in values})
            raise
        return results

    async def _find_on(
        self, node_id: int, wanted: Mapping[TopicPartition, int], read_committed: bool
    ) -> dict[TopicPartition, int]:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=p.partition, timestamp=wanted[p]) for p in partitions
                ],
            )
            for name, partitions in by_topic(wanted).items()
        ]
        request = ListOffsetsRequest(
            replica_id=NO_REPLICA, isolation_level=int(read_committed), topics=topics
        )
        leader = await self._cluster.connection_to_leader(node_id)
        response = await leader.send(request, ListOffsetsResponse)
        found: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                raise_for(answer.error_code, f"{partition}: the leader refused to list offsets")
                # Version 0 returns a list, newest first.
                found[partition] = answer.old_style_offsets[0] if answer.old_style_offsets else answer.offset
        return found

    async def _delete_on(
        self, node_id: int, before: Mapping[TopicPartition, int], _: bool
    ) -> dict[TopicPartition, int]:
        topics = [
            DeleteRecordsTopic(
                name=name,
                partitions=[
                    DeleteRecordsPartition(partition_index=p.partition, offset=before[p]) for p in partitions
                ],
            )
            for name, partitions in by_topic(before).items()
        ]
        timeout_ms = self._cluster.config.request_timeout_ms
        request = DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
        leader = await self._cluster.connection_to_leader(node_id)
        response = await leader.send(request, DeleteRecordsResponse)
        beginnings: dict[TopicPartition, int] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                raise_for(answer.error_code)
                beginnings[TopicPartition(topic.name, answer.partition_index)] = answer.low_watermark
        return beginnings
