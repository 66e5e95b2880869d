"""The writers, as Spark sees them."""

from __future__ import annotations

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

from ottla.client.errors import ClientError
from ottla.pipeline.errors import NotSupported
from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.identity import Place, place_in_stream, place_in_write
from ottla.pipeline.sink.transactions import forget_places, write_once
from ottla.pipeline.sink.writing import write_rows
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote, or had written before: how many rows, and as which place."""

    rows: int
    place: Place


class BatchWriter(DataSourceArrowWriter):
    """Writes a table once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise NotSupported('what a topic has cannot be written over: .mode("append") adds to it')
        self._config = SinkConfig.of(options)
        self._columns = Columns.of(schema, self._config)
        # All attempts of this write have it; another write, of the same rows even, has another.
        self._random_id = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task."""
        place = self._place(_task())
        return _write(iterator, self._columns, self._config, place)

    def _place(self, task: TaskContext) -> Place:
        if self._config.delivery == "at-least-once":
            return Place(self._random_id, 0, task.partitionId())  # nobody asks
        return place_in_write(
            task.getLocalProperty, task.partitionId(), self._config.write_id, self._random_id
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what only this write could have asked for again."""
        if self._config.delivery != "exactly-once":
            return
        places = [each.place for each in messages if isinstance(each, Written) and each.rows]
        try:
            forget_places([each for each in places if each.query == self._random_id], self._config)
        except (ClientError, KafkaError, TimeoutError) as error:
            log.warning("markers of a write that is done were left: %s", error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._config = SinkConfig.of(options)
        self._columns = Columns.of(schema, self._config)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task."""
        context = _task()
        place = place_in_stream(context.getLocalProperty, context.partitionId())
        return _write(iterator, self._columns, self._config, place)


def _write(batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, place: Place) -> Written:
    if config.delivery == "exactly-once":
        return Written(write_once(batches, columns, config, place), place)
    marked = place if config.delivery == "dedupe" else None
    return Written(write_rows(batches, columns, config, marked), place)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context
