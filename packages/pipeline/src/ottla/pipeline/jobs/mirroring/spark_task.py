"""The Spark task of a mirror, which writes the rows of its partitions to their copies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.admin import Admin
from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.mirroring.cluster_pair import ClusterPair
from ottla.pipeline.jobs.mirroring.offset_mapping import OffsetMapping, mapping_reader
from ottla.pipeline.jobs.mirroring.partition_copy import by_partition
from ottla.pipeline.jobs.mirroring.record_copier import RecordCopier, open_copier
from ottla.pipeline.jobs.state_files import StateFile
from ottla.pipeline.lazy import pa
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

T = TypeVar("T")

_NO_MORE = object()

_TASK = "secret.task"
"""The option with the task. Its name keeps the value, which may hold passwords, out of Spark's plans and
event logs (`spark.redaction.regex`)."""


async def iterate_in_thread(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield items; the event loop continues during the wait, because connections need it."""
    waiting = iter(things)
    while (thing := await asyncio.to_thread(next, waiting, _NO_MORE)) is not _NO_MORE:
        yield cast("T", thing)


@dataclass(frozen=True)
class Task:
    """The data that a task needs. It reaches Spark's workers as an option, so it is JSON and no pickle:
    a program that may set an option of a query must not run code with it."""

    clusters: ClusterPair
    known: OffsetMapping
    """The mapping of these partitions up to `next_offset`."""
    next_offset: int

    def to_option(self) -> str:
        """Return it as the text of an option."""
        clusters, known = self.clusters.to_json(), self.known.spans_json()
        return json.dumps({"clusters": clusters, "known": known, "next_offset": self.next_offset})

    @staticmethod
    def from_option(text: str) -> Task:
        """Undo `to_option`. Raises OptionError for anything else."""
        try:
            found = json.loads(text)
            clusters = ClusterPair.from_json(found["clusters"]).with_profiles()
            known = OffsetMapping.from_spans_json(found["known"])
            return Task(clusters, known, int(found["next_offset"]))
        except (ValueError, TypeError, KeyError) as error:
            raise OptionError(f"option {_TASK!r} is not the task of a mirror: {error!r}") from None

    async def copy(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Copy rows; return how many the copies did not have yet. Raises what `RecordCopier` raises."""
        copied = 0
        async with AsyncExitStack() as stack:
            client = self.clusters.target_client()
            target = await stack.enter_async_context(Admin(client.bootstrap_servers, client))
            copiers: dict[TopicPartition, RecordCopier] = {}
            async for rows in iterate_in_thread(batches):
                for partition, some in by_partition(rows).items():
                    if partition.topic in self.clusters.ignored:
                        continue
                    if partition not in copiers:
                        copiers[partition] = await self._open(stack, target, partition)
                    copied += await copiers[partition].copy(some)
        return copied

    async def _open(self, stack: AsyncExitStack, target: Admin, partition: TopicPartition) -> RecordCopier:
        """Continue with a partition, which another attempt of this task may have begun.

        The producer is opened first: with transactions it fences all other writers of the copy, so the
        mapping cannot change afterwards.
        """
        known = self.known.part([partition])
        found = await stack.enter_async_context(open_copier(self.clusters, known, target, str(partition)))
        reading = mapping_reader(self.clusters.target_client(), target, self.clusters.mapping_topic)
        reader = await stack.enter_async_context(reading)
        reader.begin(self.next_offset)
        await reader.read_into(known)
        await found.open([partition])
        return found


class Copies(DataSource):
    """Passes rows to tasks as Arrow batches, which only a data source can do without pandas."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "ottla-mirror-copies"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the batch writer."""
        return CopyWriter(self.options)


@dataclass(frozen=True)
class Copied(WriterCommitMessage):
    """The result of a task."""

    count: int


class CopyWriter(DataSourceArrowWriter):
    """Runs a task for the rows of each partition, and stores the number of copied records in a file."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._task: Task = Task.from_option(options[_TASK])
        self._counts = StateFile(Path(options["counts"]))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Copied:
        """Copy the rows of a partition of Spark."""
        return Copied(asyncio.run(self._task.copy(iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store the sum of the tasks: Spark calls this in a process of its own, beside the driver."""
        copied = sum(message.count for message in messages if isinstance(message, Copied))
        self._counts.write({"copied": copied}, durable=False)


def write_copies(task: Task, batch: DataFrame, counts: StateFile) -> int:
    """Copy a stream's batch; return how many records were new. The number is passed through the file."""
    batch.sparkSession.dataSource.register(Copies)
    writer = batch.write.format(Copies.name()).option(_TASK, task.to_option())
    writer = writer.option("counts", str(counts.path))
    writer.mode("append").save()
    return int(counts.read()["copied"])
