"""The writers that Spark calls.

Each Python worker that Spark starts imports this module, so transactions, and the consumer that reads their
markers, are imported only where delivery is exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.errors import ClientError
from ottla.pipeline.errors import NotSupported
from ottla.pipeline.lazy import pa
from ottla.pipeline.sink.at_least_once import write_rows
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import BrokersUnreachable
from ottla.pipeline.sink.tasks import Columns, TaskIdentity, TaskResult, batch_task, stream_task, whole
from ottla.pipeline.spark_workers import exclude_modules_from_collections, message_first
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """The result of a task."""

    done: TaskResult


@message_first
class BatchWriter(DataSourceArrowWriter):
    """Writes a table once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise NotSupported('a topic cannot be overwritten: .mode("append") adds to it')
        self.config = SinkConfig.of(options)
        self._columns = Columns.of(schema, self.config)
        # All attempts of this write share it; another write, even of the same rows, gets another one.
        self._run = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task."""
        task = self._identity(_task())
        return _write(iterator, self._columns, self.config, task, self._run)

    def _identity(self, task: TaskContext) -> TaskIdentity:
        if self.config.delivery == "at-least-once":
            return TaskIdentity(self._run, 0, task.partitionId())  # not used
        return batch_task(task.getLocalProperty, task.partitionId(), self.config.write_id, self._run)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the transactions that wait for all tasks; delete the markers of this unnamed write."""
        if self.config.delivery != "exactly-once":
            return
        from ottla.pipeline.sink.exactly_once import commit_all, forget_tasks

        done = _done(messages)
        commit_all(done, self.config)
        tasks = [result.task for result in done if result.rows and result.task.query == self._run]
        try:
            forget_tasks(tasks, self.config)
        except (ClientError, KafkaError, TimeoutError) as error:
            log.warning("markers of a completed write are not deleted", extra={"reason": str(error)})

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions that wait for all tasks."""
        _abort(messages, self.config)


@message_first
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.config = SinkConfig.of(options)
        self._columns = Columns.of(schema, self.config)
        # Spark creates a writer for each run of a batch and gives copies of it to all tasks of that run.
        self._run = f"run-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task."""
        context = _task()
        task = stream_task(context.getLocalProperty, context.partitionId())
        return _write(iterator, self._columns, self.config, task, self._run)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Commit the transactions that wait for all tasks."""
        if self.config.delivery == "exactly-once":
            from ottla.pipeline.sink.exactly_once import commit_all

            commit_all(_done(messages), self.config)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Abort the transactions that wait for all tasks."""
        _abort(messages, self.config)


def _write(
    batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, task: TaskIdentity, run: str
) -> Written:
    config = config.for_attempt(_task().attemptNumber())
    if config.delivery == "exactly-once":
        from ottla.pipeline.sink.exactly_once import write_exactly_once

        done = write_exactly_once(whole(batches), columns, config, task, run)
    else:
        marked = task if config.delivery == "dedupe" else None
        done = TaskResult(task, write_rows(batches, columns, config, marked))
    exclude_modules_from_collections()
    return Written(done)


def _done(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.done for message in messages if isinstance(message, Written)]


def _abort(messages: list[WriterCommitMessage | None], config: SinkConfig) -> None:
    if config.delivery != "exactly-once":
        return
    from ottla.pipeline.sink.exactly_once import abort_all

    try:
        abort_all(_done(messages), config)
    except (ClientError, KafkaError, TimeoutError) as error:
        log.warning("transactions stay open until their timeout", extra={"reason": str(error)})


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def require_brokers(config: SinkConfig) -> None:
    """Reach a broker of the cluster, within `kafka.bootstrap.timeout.ms`. Raises BrokersUnreachable."""
    client = config.producer_config().client
    try:
        asyncio.run(_reach(client))
    except ClientError as error:
        raise BrokersUnreachable(config.producer["bootstrap.servers"], error) from error


async def _reach(client: ClientConfig) -> None:
    async with Cluster(client.bootstrap_servers, client):
        pass
