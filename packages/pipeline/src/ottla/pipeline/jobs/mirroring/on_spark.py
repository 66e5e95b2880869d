"""Mirroring on Spark: a task for each partition."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from ottla.client.blocking import LoopThread
from ottla.pipeline.jobs.mirroring.copier import fence
from ottla.pipeline.jobs.mirroring.session import Session, session
from ottla.pipeline.jobs.mirroring.spark_task import Task, write_as
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.mirror import Mirror
    from ottla.pipeline.jobs.run import Run

_FENCES_AT_ONCE = 8


def mirror_on_spark(mirror: Mirror, run: Run) -> None:
    """Copy batch by batch: tasks write, and the driver looks after topics and groups."""
    desk = LoopThread(lambda: session(mirror), name=f"mirror {mirror.name}")
    opened = desk.start()
    try:
        driver = Driver(mirror, run, opened, desk)
        run.stream(driver.frame(), driver.copy)
        # Groups go on in the source while there is nothing to copy.
        run.wait(lambda: desk.call(opened.move_groups))
        desk.call(lambda: opened.move_groups(now=True))
    finally:
        desk.close()


class Driver:
    """What the driver does between batches."""

    def __init__(self, mirror: Mirror, run: Run, opened: Session, desk: LoopThread[Session]) -> None:
        self._mirror = mirror
        self._run = run
        self._session = opened
        self._desk = desk
        self._partitions: list[TopicPartition] = []

    def frame(self) -> DataFrame:
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
        return self._mirror.source.stream(self._run.spark, options)

    def copy(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Copy a batch; return how many records were not there yet."""
        self._desk.call(self._refresh)
        copied = write_as(self._task(), batch, self._run.state("mirror.copied"))
        self._desk.call(self._session.catch_up)
        return {"copied": copied}

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

    async def _fence(self) -> None:
        """End the transactions of tasks that were killed: readers of the mapping wait for them."""
        sides, room = self._session.sides, asyncio.Semaphore(_FENCES_AT_ONCE)

        async def end(partition: TopicPartition) -> None:
            async with room:
                await fence(sides.producer_config(str(partition)))

        try:
            async with asyncio.TaskGroup() as ending:
                for each in self._partitions:
                    ending.create_task(end(each))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
