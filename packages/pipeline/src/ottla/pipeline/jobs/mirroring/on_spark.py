"""The Spark engine of mirrors: a task for each partition."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from ottla.client.blocking import LoopThread
from ottla.pipeline.jobs.mirroring.mirror_session import MirrorSession, open_session
from ottla.pipeline.jobs.mirroring.record_copier import fence
from ottla.pipeline.jobs.mirroring.spark_task import Task, write_copies
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.mirroring.mirror_declaration import MirrorDeclaration
    from ottla.pipeline.jobs.run import Run

_FENCES_AT_ONCE = 8


def mirror_on_spark(mirror: MirrorDeclaration, run: Run) -> None:
    """Copy batch by batch: tasks write, and the driver handles topics and groups."""
    session_thread = LoopThread(lambda: open_session(mirror), name=f"mirror {mirror.name}")
    opened = session_thread.start()
    try:
        driver = Driver(mirror, run, opened, session_thread)
        run.stream(driver.frame(), driver.copy)
        # Groups advance in the source even if there is nothing to copy.
        run.wait(lambda: session_thread.call(opened.move_groups))
        session_thread.call(lambda: opened.move_groups(now=True))
    finally:
        session_thread.close()


class Driver:
    """The work of the driver between batches."""

    def __init__(
        self,
        mirror: MirrorDeclaration,
        run: Run,
        opened: MirrorSession,
        session_thread: LoopThread[MirrorSession],
    ) -> None:
        self._mirror = mirror
        self._run = run
        self._session = opened
        self._session_thread = session_thread
        self._partitions: list[TopicPartition] = []

    def frame(self) -> DataFrame:
        """Return the stream of records; a new checkpoint starts at the positions of the mapping."""
        self._session_thread.call(self._refresh)
        if self._session.clusters.transactional:
            self._session_thread.call(self._fence)
            self._session_thread.call(self._session.catch_up)
        options = {
            "includeHeaders": "true",
            "kafka.isolation.level": self._session.clusters.source_config().isolation_level,
        }
        if self._mirror.source.pattern is not None:
            ignored = self._session.clusters.ignored
            options["subscribePattern"] = self._mirror.pattern_without(ignored)
        if self._partitions:
            options["startingOffsets"] = self._starting()
        return self._mirror.source.stream(self._run.spark, options)

    def copy(self, batch: DataFrame, batch_id: int) -> dict[str, int]:
        """Copy a batch; return how many records were new."""
        self._session_thread.call(self._refresh)
        copied = write_copies(self._task(), batch, self._run.state("mirror.copied"))
        self._session_thread.call(self._session.catch_up)
        return {"copied": copied}

    def _task(self) -> Task:
        opened = self._session
        known = opened.mapping.part(self._partitions)
        return Task(opened.clusters, known, opened.reader.next_offset)

    def _starting(self) -> str:
        found: dict[str, dict[str, int]] = {}
        for partition in self._partitions:
            last = self._session.mapping.last(partition)
            assert last is not None, "each partition has a first span"
            found.setdefault(partition.topic, {})[str(partition.partition)] = last.next_source
        return json.dumps(found)

    async def _refresh(self) -> None:
        # For each batch, because it may contain partitions that were created before it was planned.
        self._partitions = await self._session.partitions()
        await self._session.reader.read_into(self._session.mapping)

    async def _fence(self) -> None:
        """Fence the transactions of killed tasks, because readers of the mapping wait for them."""
        clusters, room = self._session.clusters, asyncio.Semaphore(_FENCES_AT_ONCE)

        async def end(partition: TopicPartition) -> None:
            async with room:
                await fence(clusters.producer_config(str(partition)))

        try:
            async with asyncio.TaskGroup() as ending:
                for partition in self._partitions:
                    ending.create_task(end(partition))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
