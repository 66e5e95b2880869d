"""A consumer of the log in memory, with the methods of `ottla.consumer.Consumer` that streams use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer import (
    ConsumerConfig,
    ConsumerMetrics,
    ConsumerRecord,
    ConsumerStopped,
    NoOffset,
    NotAssigned,
    RecordBatch,
)
from ottla.consumer.subscription import tell
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.cluster import Life, MemoryCluster

DEFAULT_RECORDS: Final = 500
Offset = int | OffsetAndMetadata


class MemoryConsumer:
    """Reads topics as a member of a group, or partitions that `assign` gives."""

    def __init__(self, config: ConsumerConfig, cluster: MemoryCluster, life: Life) -> None:
        self.config = config
        self.metrics = ConsumerMetrics()
        self.member_id = life.name_client("consumer")
        self.topics: Set[str] = frozenset()
        self._cluster = cluster
        self._life = life
        self._group = None if config.group_id is None else cluster.group(config.group_id)
        self._listener: Any = None
        self._positions: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        self._paused: set[TopicPartition] = set()
        self._changed = asyncio.Event()
        self._is_stopped = False
        self._failure: BaseException | None = None
        self._context = Context()
        life.on_end(self._end)

    # --- starting and stopping

    async def start(self) -> None:
        """Join the group; return once partitions are assigned."""
        self._context = copy_context()
        self._cluster.log.watch(self._changed.set)
        if self._group is not None and self.topics:
            await self._group.join(self)
        self._raise_failure()

    async def stop(self) -> None:
        """Call the listener, and leave the group."""
        if self._is_stopped or self._life.is_ended:
            return
        if self._group is not None and self in self._group.members:
            await self.give_up(frozenset(self._positions))
            self._group.leave(self)
        self._end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _end(self) -> None:
        self._is_stopped = True
        self._cluster.log.unwatch(self._changed.set)
        if self._group is not None:
            self._group.leave(self)
        self._changed.set()

    # --- what to read

    def subscribe(self, topics: str | Iterable[str] = (), *, listener: Any = None) -> None:
        """Read topics by name."""
        self.topics = frozenset([topics] if isinstance(topics, str) else topics)
        self._listener = listener

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those assigned before keep their positions."""
        self._positions = {
            partition: self._positions.get(partition, self._reset(partition)) for partition in partitions
        }
        self._changed.set()

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return frozenset(self._positions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop delivering partitions until they are resumed."""
        self._paused.update(map(self._assigned, partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue partitions that were paused."""
        self._paused.difference_update(map(self._assigned, partitions))
        self._changed.set()

    # --- records

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return records of one partition, waiting up to `timeout_ms` for the first."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1_000):
                batch = await self._next(max_records)
        except TimeoutError:
            return {}
        if batch is None:
            raise ConsumerStopped("the consumer was closed")
        return {batch.topic_partition: batch.records}

    async def batches(self, *, max_records: int | None = None) -> AsyncIterator[RecordBatch]:
        """Iterate over batches of one partition each, until the consumer is stopped."""
        while (batch := await self._next(max_records)) is not None:
            yield batch

    async def _next(self, max_records: int | None) -> RecordBatch | None:
        limit = max_records or self.config.max_poll_records or DEFAULT_RECORDS
        await asyncio.sleep(0)  # what takes the records runs in between
        while True:
            await self._life.going_on()
            self._raise_failure()
            if self._is_stopped:
                return None
            if (batch := self._take(limit)) is not None:
                return batch
            self._changed.clear()
            await self._changed.wait()

    def _take(self, max_records: int) -> RecordBatch | None:
        for partition in list(self._positions):
            if partition in self._held or partition in self._paused:
                continue
            log = self._cluster.log.partition(partition)
            records, following = log.read(self._positions[partition], max_records)
            del self._positions[partition]  # the next one is another partition's
            self._positions[partition] = following
            if records:
                return RecordBatch(partition, records, following, log.end_offset)
        return None

    # --- positions

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Continue a partition at an offset."""
        self._positions[self._assigned(partition)] = _offset(offset).offset
        self._changed.set()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the first records of partitions."""
        for partition in partitions or tuple(self._positions):
            self.seek(partition, 0)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record of a partition to be delivered."""
        return self._positions[self._assigned(partition)]

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the end of a partition."""
        return self._cluster.log.partition(self._assigned(partition)).end_offset

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the number of offsets up to the end."""
        position = self._positions[self._assigned(partition)]
        return self._cluster.log.partition(partition).end_offset - position

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic."""
        return set(range(len(self._cluster.log.partitions(topic))))

    async def end_offsets(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return where partitions end, one past their last record."""
        wanted = self._positions if partitions is None else partitions
        return {partition: self._cluster.log.partition(partition).end_offset for partition in wanted}

    # --- commits

    async def commit(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Commit offsets for the group. Raises CommitFailed for partitions of other members."""
        await self._life.going_on()
        assert self._group is not None, "a commit needs a group"
        self._group.commit(self, {partition: _offset(offset) for partition, offset in offsets.items()})

    async def committed_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets with their metadata; partitions without one are left out."""
        assert self._group is not None, "committed offsets need a group"
        offsets = self._group.offsets
        return {partition: offsets[partition] for partition in partitions if partition in offsets}

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for transactions."""
        assert self._group is not None, "group metadata need a group"
        return GroupMetadata(
            self._group.group_id, self._group.generation, self.member_id, self.config.group_instance_id
        )

    @property
    def session_ends_s(self) -> float | None:
        """None: the group keeps its members until they end."""
        return None

    # --- what the group calls

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that it has."""
        return frozenset(self._positions)

    async def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener, and then read these partitions no more."""
        if partitions:
            self._held.update(partitions)
            await self._tell("revoked", partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
        self._held -= partitions
        self._paused -= partitions

    async def take(self, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener, and then read these partitions, too, from their commits on."""
        self._held.update(partitions)
        try:
            for partition in sorted(partitions):
                committed = None if self._group is None else self._group.offsets.get(partition)
                self._positions[partition] = self._reset(partition) if committed is None else committed.offset
        except NoOffset as error:
            self._fail(error)
        else:
            await self._tell("assigned", partitions)
        self._held -= partitions
        self._changed.set()

    async def _tell(self, what: str, partitions: frozenset[TopicPartition]) -> None:
        """Call the listener in a task of the member's own, which ends with it."""
        if self._listener is None or self._life.is_ended:
            return
        timeout_s = self.config.max_poll_interval_ms / 1_000
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._told(what, partitions, timeout_s), context=self._context.copy())

    async def _told(self, what: str, partitions: frozenset[TopicPartition], timeout_s: float) -> None:
        try:
            await tell(self._listener, what, partitions, timeout_s)
        except Exception as error:
            self._fail(error)

    # --- inside

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._changed.set()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _assigned(self, partition: TopicPartition) -> TopicPartition:
        if partition not in self._positions:
            raise NotAssigned(partition)
        return partition

    def _reset(self, partition: TopicPartition) -> int:
        match self.config.auto_offset_reset:
            case "earliest":
                return 0
            case "latest":
                return self._cluster.log.partition(partition).end_offset
        raise NoOffset(partition)


def _offset(given: Offset) -> OffsetAndMetadata:
    return OffsetAndMetadata(given) if isinstance(given, int) else given
