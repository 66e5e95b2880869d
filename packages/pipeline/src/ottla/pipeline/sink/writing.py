"""What a task does without transactions: rows to topics, each at least once.

A worker process of Spark runs many tasks, one after another, and keeps its producer from task to task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.client.blocking import LoopThread
from ottla.pipeline.kept import Kept
from ottla.pipeline.sink.columns import Columns
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.identity import Place
from ottla.pipeline.sink.outbox import Outbox
from ottla.pipeline.sink.row_ids import RowIds
from ottla.producer import Producer

if TYPE_CHECKING:
    import pyarrow as pa

_producers: Kept[LoopThread[Producer]] = Kept("a producer of the sink", 4)


def write_rows(
    batches: Iterator[pa.RecordBatch], columns: Columns, config: SinkConfig, place: Place | None
) -> int:
    """Write the rows of a task, with headers that name their place if one is given; return how many.

    Raises what kept a row from being written; others may be written, and come again with another attempt.
    """
    key = tuple(sorted(config.producer.items()))
    thread = _producers.get(key, lambda: _started_later(config))
    try:
        outbox = Outbox(thread, thread.start())
        count = put_all(outbox, batches, columns, place)
        outbox.finish()
    except BaseException:
        _producers.forget(key)
        raise
    return count


def put_all(
    outbox: Outbox, batches: Iterator[pa.RecordBatch], columns: Columns, place: Place | None = None
) -> int:
    """Put all rows of a task into the outbox; return how many."""
    count = 0
    ids = None if place is None else RowIds(place)
    for rows in batches:
        records = columns.records(rows)
        if ids is not None:
            records = ids.added(records, rows.column("topic") if columns.topic is None else None)
        for topic, some in columns.by_topic(records, rows):
            if some.num_rows:
                outbox.put(topic, some)
        count += rows.num_rows
    return count


def _started_later(config: SinkConfig) -> LoopThread[Producer]:
    producer = config.producer_config()
    return LoopThread(lambda: Producer(config=producer), name="a sink of Spark")
