"""At-least-once delivery: a task sends its rows without a transaction.

A Spark worker process runs many tasks, one after another, and keeps its producer between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.client.blocking import LoopThread
from ottla.pipeline.process_cache import ProcessCache
from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.row_ids import RowIds
from ottla.pipeline.sink.row_sender import RowSender
from ottla.pipeline.sink.task_identity import TaskIdentity
from ottla.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

_producers: ProcessCache[LoopThread[Producer]] = ProcessCache("a producer of the sink", 4)


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, task: TaskIdentity | None
) -> int:
    """Send the rows of a task and return their count; with `task`, add the headers that identify each row.

    Raises the error of the first row that failed. Other rows may be written; the next attempt sends them
    again.
    """
    key = tuple(sorted(config.producer.items()))
    thread = _producers.get(key, lambda: _started_later(config))
    try:
        sender = RowSender(thread, thread.start())
        count = put_all(sender, batches, columns, task)
        sender.finish()
    except BaseException:
        _producers.forget(key)
        raise
    return count


def put_all(
    sender: RowSender, batches: Iterator[pa.RecordBatch], columns: Columns, task: TaskIdentity | None = None
) -> int:
    """Send all rows of a task and return their count."""
    count = 0
    ids = None if task is None else RowIds(task)
    for rows in batches:
        records = columns.records(rows)
        if ids is not None:
            records = ids.added(records, rows.column("topic") if columns.topic is None else None)
        for topic, some in columns.by_topic(records, rows):
            if some.num_rows:
                sender.put(topic, some)
        count += rows.num_rows
    return count


def _started_later(config: SinkConfig) -> LoopThread[Producer]:
    producer = config.producer_config()
    return LoopThread(lambda: Producer(config=producer), name="a sink of Spark")
