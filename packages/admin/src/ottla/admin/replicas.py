"""Replicas of partitions, asked one by one: their ends, their lag, and whether their bytes are equal."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.admin.offsets import EARLIEST, LATEST
from ottla.client.cluster import Cluster, Partition, raise_for
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.records import crc32c, magic_at, read_header, split_batches, why_unreadable
from ottla.protocol.topics import TopicPartition, by_topic

ANY_REPLICA: Final = -2
"""The replica id of a reader that any replica answers, up to the end of its log."""
ANY_RACK: Final = "any"
"""The rack of a consumer that may be served by followers: an Ottla follower serves no other (KIP-392)."""
FETCH_BYTES: Final = 1 << 20
_FIRST_FETCH_FROM_FOLLOWERS, _LAST_FETCH_BY_NAME = 11, 12
_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """One replica: its log end, and the records it lacks of its leader's; None where it does not answer."""

    partition: TopicPartition
    broker: int
    is_leader: bool
    in_sync: bool
    log_end_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of records as a replica stores it; the checksum is of all its bytes."""

    base_offset: int
    last_offset: int
    checksum: int
    unreadable: str | None = field(default=None, compare=False)
    """Why its records cannot be read; looked for on one replica only."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A compared partition: the offsets that were compared, and the first difference, in words."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    start: int
    end: int
    batches: int
    difference: str | None = None
    unreadable: tuple[StoredBatch, ...] = ()
    """The compared batches whose records no consumer can read."""


class Replicas:
    """Reads each replica of partitions from its broker, not from the leader."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ends(self, partitions: Mapping[TopicPartition, Partition]) -> list[ReplicaEnd]:
        """Return the log end of every replica, and its lag behind its leader."""
        found = await self._offsets(partitions, LATEST)
        rows = []
        for partition, state in sorted(partitions.items()):
            leader_end = found.get((state.leader, partition))
            for broker in state.replicas:
                end = found.get((broker, partition))
                lag = None if end is None or leader_end is None else max(0, leader_end - end)
                is_leader, in_sync = broker == state.leader, broker in state.isr
                rows.append(ReplicaEnd(partition, broker, is_leader, in_sync, end, lag))
        return rows

    async def verify(self, partition: TopicPartition, state: Partition) -> Verified:
        """Compare a partition's batches on all its replicas, byte by byte, up to the least of their ends.

        Only what all of them still have is compared. A replica that does not answer is a difference; the
        others are compared without it.
        """
        starts = await self._offsets({partition: state}, EARLIEST)
        ends = await self._offsets({partition: state}, LATEST)
        there = [replica for replica in state.replicas if (replica, partition) in starts.keys() & ends.keys()]
        start = max((starts[replica, partition] for replica in there), default=0)
        end = min((ends[replica, partition] for replica in there), default=0)
        found = await self._compare(partition, there, start, end)
        silent = [f"replica {replica} does not answer" for replica in state.replicas if replica not in there]
        difference = "; ".join(filter(None, (found.difference, *silent))) or None
        return Verified(
            partition, state.replicas, start, found.next_offset, found.batches, difference, found.unreadable
        )

    async def _compare(self, partition: TopicPartition, brokers: Sequence[int], start: int, end: int) -> Step:
        """Compare the committed batches of some replicas up to the first difference."""
        offset, count = start, 0
        unreadable: tuple[StoredBatch, ...] = ()
        while offset < end:
            try:
                step = compare(await self._read(partition, brokers, offset), offset, end)
            except (ClientError, KafkaError) as error:
                step = Step(offset, 0, str(error))
            offset, count = step.next_offset, count + step.batches
            unreadable += step.unreadable
            if step.difference is not None or step.batches == 0:
                return Step(offset, count, step.difference, unreadable)
        return Step(offset, count, unreadable=unreadable)

    async def _offsets(
        self, partitions: Mapping[TopicPartition, Partition], which: int
    ) -> dict[tuple[int, TopicPartition], int]:
        """Ask every replica for an offset; those that do not answer are left out."""
        by_broker: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition, state in partitions.items():
            for broker in state.replicas:
                by_broker[broker].append(partition)
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._offsets_on(broker, some, which)) for broker, some in by_broker.items()
            ]
        return {key: offset for task in asked for key, offset in task.result().items()}

    async def _offsets_on(
        self, broker: int, partitions: Sequence[TopicPartition], which: int
    ) -> dict[tuple[int, TopicPartition], int]:
        topics = [
            ListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsPartition(partition_index=partition.partition, timestamp=which)
                    for partition in some
                ],
            )
            for name, some in by_topic(partitions).items()
        ]
        request = ListOffsetsRequest(replica_id=ANY_REPLICA, topics=topics)
        try:
            async with asyncio.timeout(_WAIT_S):
                response = await self._cluster.send(broker, request, ListOffsetsResponse)
        except (ClientError, KafkaError, TimeoutError):
            return {}
        return {
            (broker, TopicPartition(topic.name, answer.partition_index)): answer.offset
            for topic in response.topics
            for answer in topic.partitions
            if not answer.error_code
        }

    async def _read(
        self, partition: TopicPartition, brokers: Iterable[int], offset: int
    ) -> dict[int, list[StoredBatch]]:
        try:
            async with asyncio.TaskGroup() as tasks:
                reads = {
                    broker: tasks.create_task(self._fetch(broker, partition, offset)) for broker in brokers
                }
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        opened = next(iter(reads), None)
        return {
            broker: list(_batches(read.result(), opens=broker == opened)) for broker, read in reads.items()
        }

    async def _fetch(self, broker: int, partition: TopicPartition, offset: int) -> bytes | memoryview:
        wanted = FetchPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[FetchTopic(topic=partition.topic, partitions=[wanted])],
            rack_id=ANY_RACK,
        )
        response = await self._cluster.send(
            broker,
            request,
            FetchResponse,
            min_version=_FIRST_FETCH_FROM_FOLLOWERS,
            max_version=_LAST_FETCH_BY_NAME,
        )
        raise_for(response.error_code)
        (found,) = (partition for topic in response.responses for partition in topic.partitions)
        raise_for(found.error_code, f"{partition}: broker {broker} refused to read")
        return found.records or b""


def _batches(data: bytes | memoryview, *, opens: bool) -> Iterator[StoredBatch]:
    for entry in split_batches(data, torn_tail=True):
        base = int.from_bytes(entry[:8], "big")
        last = read_header(entry).last_offset if magic_at(entry) == 2 else base
        yield StoredBatch(base, last, crc32c(entry), _why_unreadable(entry) if opens else None)


def _why_unreadable(entry: memoryview) -> str | None:
    try:
        return why_unreadable(entry)
    except KafkaError as error:  # all replicas have the wrong checksum, or the comparison finds the one
        return str(error)


@dataclass(frozen=True, slots=True)
class Step:
    """The batches that were compared, the offset after them, and the first difference."""

    next_offset: int
    batches: int
    difference: str | None = None
    unreadable: tuple[StoredBatch, ...] = ()


def compare(read: Mapping[int, Sequence[StoredBatch]], offset: int, end: int) -> Step:
    """Compare what replicas have returned from `offset` on: as many batches as all of them have.

    Batches from `end` on are left: a replica may not have them yet.
    """
    compared = 0
    unreadable: list[StoredBatch] = []
    for batches in zip(*read.values(), strict=False):
        if batches[0].base_offset >= end:
            break
        first = batches[0]
        for broker, batch in zip(read, batches, strict=True):
            if batch != first:
                difference = _difference(next(iter(read)), first, broker, batch)
                return Step(offset, compared, difference, tuple(unreadable))
        compared, offset = compared + 1, first.last_offset + 1
        if first.unreadable is not None:
            unreadable.append(first)
    return Step(offset, compared, unreadable=tuple(unreadable))


def _difference(one: int, batch: StoredBatch, other: int, differs: StoredBatch) -> str:
    if (batch.base_offset, batch.last_offset) != (differs.base_offset, differs.last_offset):
        return (
            f"replica {one} has a batch at {batch.base_offset}-{batch.last_offset}, "
            f"replica {other} at {differs.base_offset}-{differs.last_offset}"
        )
    where = f"{batch.base_offset}-{batch.last_offset}"
    return (
        f"the batch at {where} has checksum {batch.checksum:08x} on replica {one}, "
        f"{differs.checksum:08x} on replica {other}"
    )
