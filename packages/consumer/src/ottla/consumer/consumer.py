"""The consumer: records of topics, in the order of each partition."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ottla.client.admin import EARLIEST, LATEST, Groups, Offsets
from ottla.client.cluster import Cluster
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import ConsumerClosed, NoOffset
from ottla.consumer.fetcher import Fetcher
from ottla.consumer.positions import Positions
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition

POLL_S = 1.0


class Consumer:
    """Reads topics, or partitions that `assign` gives.

        async with Consumer("orders", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.offset, record.key, record.value)

    Every consumer reads all partitions of its topics: members of a group do not share them yet. With
    `group_id` it begins where that group committed, and `commit` keeps the place.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Iterable[str] = "127.0.0.1:9092",
        config: ConsumerConfig | None = None,
        **settings: Any,
    ) -> None:
        if config is not None and settings:
            raise TypeError("give a config or single settings, not both")
        self.config = config or ConsumerConfig(**settings)
        self.topics = topics
        self._cluster = Cluster(bootstrap_servers, self.config.client)
        self._offsets = Offsets(self._cluster)
        self._groups = Groups(self._cluster, self._offsets)
        self._positions = Positions()
        self._fetcher = Fetcher(self._cluster, self._positions, self.config)
        self._buffer: deque[ConsumerRecord] = deque()
        self._given: dict[TopicPartition, int] = {}
        self._looked_up: set[TopicPartition] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        try:
            await self._assign_topics()
            self._tasks = asyncio.TaskGroup()
            await self._tasks.__aenter__()
        except BaseException:
            await self._cluster.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        self._fetcher.stop()
        try:
            if tasks is not None:
                await tasks.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        finally:
            await self._cluster.close()

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._buffer:
            self._buffer.extend(await self._fetch(POLL_S))
        return self._give(self._buffer.popleft())

    async def poll(self, timeout_ms: float = 1_000, max_records: int = 500) -> list[ConsumerRecord]:
        """Return up to `max_records`, waiting up to `timeout_ms` for the first of them."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1_000
        while not self._buffer:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return []
            self._buffer.extend(await self._fetch(left_s))
        count = min(max_records, len(self._buffer))
        return [self._give(self._buffer.popleft()) for _ in range(count)]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions instead of whole topics."""
        self._positions.assign(partitions)
        kept = set(self._positions.assigned)
        self._looked_up &= kept
        self._buffer = deque(each for each in self._buffer if (each.topic, each.partition) in kept)
        self._given = {each: offset for each, offset in self._given.items() if each in kept}

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return self._positions.assigned

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on."""
        self._positions.seek(partition, offset)
        self._forget_buffered(partition)

    async def seek_to(self, timestamp_ms: int) -> None:
        """Read all partitions from the first record at or after a time; EARLIEST and LATEST are times too."""
        found = await self._offsets.find(dict.fromkeys(self._positions.assigned, timestamp_ms))
        for partition, offset in found.items():
            self.seek(partition, offset)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that will be given out."""
        if partition in self._given:
            return self._given[partition]
        await self._find_positions()
        buffered = [each.offset for each in self._buffer if (each.topic, each.partition) == partition]
        offset = buffered[0] if buffered else self._positions.position(partition)
        if offset is None:
            raise NoOffset(partition)
        return offset

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return where the partitions end: one past their last record."""
        wanted = dict.fromkeys(self._positions.assigned, LATEST)
        return await self._offsets.find(wanted, read_committed=self.config.reads_committed)

    def pause(self, *partitions: TopicPartition) -> None:
        """Fetch nothing of some partitions until they are resumed; what is buffered is still given out."""
        self._positions.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Fetch partitions again."""
        self._positions.resume(partitions)

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Keep the place under the group's name: behind the records that were given out, or as told.

        Raises ValueError without `group_id`, NonEmptyGroup while others are members of that group.
        """
        if self.config.group_id is None:
            raise ValueError("there is no group to commit for; set group_id")
        wanted = self._given if offsets is None else offsets
        if wanted:
            await self._groups.commit(self.config.group_id, dict(wanted))

    async def _assign_topics(self) -> None:
        partitions: list[TopicPartition] = []
        for name in self.topics:
            topic = await self._cluster.topic(name)
            partitions += (TopicPartition(name, index) for index in sorted(topic.partitions))
        self._positions.assign(partitions)

    async def _fetch(self, timeout_s: float) -> list[ConsumerRecord]:
        if self._tasks is None:
            raise ConsumerClosed("the consumer is not open; use it inside `async with`")
        await self._find_positions()
        return await self._fetcher.next_records(self._tasks, timeout_s)

    async def _find_positions(self) -> None:
        missing = self._positions.missing()
        if not missing:
            return
        found = await self._committed(missing)
        rest = [each for each in missing if each not in found]
        if rest and self.config.auto_offset_reset == "none":
            raise NoOffset(rest[0])
        if rest:
            goal = EARLIEST if self.config.auto_offset_reset == "earliest" else LATEST
            found |= await self._offsets.find(dict.fromkeys(rest, goal))
        for partition, offset in found.items():
            if self._positions.position(partition) is None and partition in self._positions.assigned:
                self._positions.seek(partition, offset)

    async def _committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        # An offset that ran out of the log is not looked up again: it would run out again.
        fresh = [each for each in partitions if each not in self._looked_up]
        if self.config.group_id is None or not fresh:
            return {}
        committed = await self._groups.offsets(self.config.group_id, fresh)
        # Not before the answer is there: a lookup that was cancelled would pass for "nothing committed".
        self._looked_up.update(fresh)
        return {each.partition: each.offset for each in committed}

    def _give(self, record: ConsumerRecord) -> ConsumerRecord:
        self._given[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return record

    def _forget_buffered(self, partition: TopicPartition) -> None:
        self._given.pop(partition, None)
        self._buffer = deque(each for each in self._buffer if (each.topic, each.partition) != partition)
