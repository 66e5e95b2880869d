"""Mirroring on Spark: a task for each partition."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.admin import Admin
from ottla.client.blocking import LoopThread
from ottla.pipeline.jobs.mirroring.copier import Copier, copier, fence
from ottla.pipeline.jobs.mirroring.copying import by_partition
from ottla.pipeline.jobs.mirroring.mapping import OffsetMapping
from ottla.pipeline.jobs.mirroring.mapping_topic import mapping_reader
from ottla.pipeline.jobs.mirroring.session import Session, session
from ottla.pipeline.jobs.mirroring.sides import Sides
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.mirror import Mirror
    from ottla.pipeline.jobs.run import Run

_COPIED = "copied BIGINT"
_FENCES_AT_ONCE = 8


def mirror_on_spark(mirror: Mirror, run: Run) -> None:
    """Copy batch by batch: tasks write, and the driver looks after topics and groups."""
    desk = LoopThread(lambda: session(mirror), name=f"mirror {mirror.name}")
    opened = desk.start()
    try:
        driver = Driver(mirror, opened, desk)
        run.stream(driver.frame(run), driver.copy)
        run.wait()
        desk.call(lambda: opened.move_groups(now=True))
    finally:
        desk.close()


class Driver:
    """What the driver does between batches."""

    def __init__(self, mirror: Mirror, opened: Session, desk: LoopThread[Session]) -> None:
        self._mirror = mirror
        self._session = opened
        self._desk = desk
        self._partitions: list[TopicPartition] = []

    def frame(self, run: Run) -> DataFrame:
        """Return the stream of records: of a new checkpoint from where the mapping is."""
        self._desk.call(self._refresh)
        if self._session.sides.transactional:
            self._desk.call(self._fence)
            self._desk.call(self._session.catch_up)
        options = {
            "includeHeaders": "true",
            "kafka.isolation.level": self._session.sides.source_config().isolation_level,
        }
        if self._mirror.source.pattern is not None:
            ignored = self._session.sides.ignored
            options["subscribePattern"] = self._mirror.pattern_without(ignored)
        if self._partitions:
            options["startingOffsets"] = self._starting()
        return self._mirror.source.stream(run.spark, options)

    def copy(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Copy a batch; return how many records were not there yet."""
        self._desk.call(self._refresh)
        task = self._task()
        rows = batch.mapInArrow(task.rows, _COPIED).collect()
        self._desk.call(self._after)
        return {"copied": sum(each.copied for each in rows)}

    def _task(self) -> Task:
        opened = self._session
        known = opened.mapping.part(self._partitions)
        return Task(opened.sides, known, opened.reader.next_offset)

    def _starting(self) -> str:
        found: dict[str, dict[str, int]] = {}
        for each in self._partitions:
            last = self._session.mapping.last(each)
            assert last is not None, "each partition has a place"
            found.setdefault(each.topic, {})[str(each.partition)] = last.next_source
        return json.dumps(found)

    async def _refresh(self) -> None:
        # For each batch: it may have partitions that were not there before it was planned.
        self._partitions = await self._session.partitions()
        await self._session.reader.read_into(self._session.mapping)

    async def _after(self) -> None:
        await self._session.catch_up()
        await self._session.move_groups()

    async def _fence(self) -> None:
        """End the transactions of tasks that were killed: readers of the mapping wait for them."""
        sides, room = self._session.sides, asyncio.Semaphore(_FENCES_AT_ONCE)

        async def end(partition: TopicPartition) -> None:
            async with room:
                await fence(sides.producer_config(str(partition)))

        async with asyncio.TaskGroup() as ending:
            for each in self._partitions:
                ending.create_task(end(each))


@dataclass(frozen=True)
class Task:
    """What a task has to know: it goes to workers of Spark."""

    sides: Sides
    known: OffsetMapping
    """What the mapping had of these partitions up to `next_offset`."""
    next_offset: int

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy rows; yield how many were not there yet."""
        import pyarrow as pa

        copied = asyncio.run(self._copy_all(batches))
        yield pa.RecordBatch.from_pydict({"copied": pa.array([copied], pa.int64())})

    async def _copy_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        copied = 0
        async with AsyncExitStack() as stack:
            client = self.sides.target_client()
            target = await stack.enter_async_context(Admin(client.bootstrap_servers, client))
            copiers: dict[TopicPartition, Copier] = {}
            for rows in batches:
                for partition, some in by_partition(rows).items():
                    if partition.topic in self.sides.ignored:
                        continue
                    if partition not in copiers:
                        copiers[partition] = await self._open(stack, target, partition)
                    copied += await copiers[partition].copy(some)
        return copied

    async def _open(self, stack: AsyncExitStack, target: Admin, partition: TopicPartition) -> Copier:
        """Go on with a partition, where another attempt of this task may have left it.

        The producer comes first: from then on nobody else can write to the copy, where there are
        transactions, and what the mapping says stays so.
        """
        known = self.known.part([partition])
        found = await stack.enter_async_context(copier(self.sides, known, target, str(partition)))
        reading = mapping_reader(self.sides.target_client(), target, self.sides.mapping_topic)
        reader = await stack.enter_async_context(reading)
        reader.begin(self.next_offset)
        await reader.read_into(known)
        await found.open([partition])
        return found
