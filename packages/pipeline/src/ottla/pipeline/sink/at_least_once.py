"""At-least-once delivery: a task sends its rows without a transaction.

A Spark worker process runs many tasks, one after another, and keeps its producer between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ottla.client.blocking import Call, LoopThread
from ottla.pipeline.lazy import pa
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import RowsUnfit
from ottla.pipeline.sink.row_ids import RowIds
from ottla.pipeline.sink.tasks import Columns, TaskIdentity
from ottla.pipeline.spark_workers import ProcessCache
from ottla.producer import Producer, RecordTooLarge
from ottla.producer.accumulator import Acknowledgements
from ottla.protocol.errors import MessageTooLarge


@contextmanager
def _in_options() -> Iterator[None]:
    """Within this context, errors about sizes of records name the option that changes the limit."""
    try:
        yield
    except RecordTooLarge as error:
        raise RowsUnfit(
            f"a row is a record of about {error.size_bytes:,} bytes: option kafka.max.request.size allows "
            f"{error.limit_bytes:,}, and the topic's max.message.bytes may allow less"
        ) from error
    except MessageTooLarge as error:
        raise RowsUnfit(
            "a row is a record that is larger than the topic's max.message.bytes allows: raise it with "
            "`ottla topic alter`"
        ) from error


class RowSender:
    """Hands rows to a producer on its own thread while Spark computes the next ones.

    An error of a row is raised by a later `put`, or by `finish`.
    """

    def __init__(self, thread: LoopThread[Any], producer: Producer) -> None:
        self._thread = thread
        self._producer = producer
        self._handing_over: Call[None] | None = None
        # Used on the producer's loop only.
        self._underway: deque[Acknowledgements] = deque()

    def put(self, topic: str, records: pa.RecordBatch) -> None:
        """Send rows to a topic, after those of earlier calls; wait while the producer's buffer is full."""
        self._handed_over()
        self._handing_over = self._thread.submit(lambda: self._hand_over(topic, records))

    def finish(self) -> None:
        """Wait until all rows are acknowledged. Raises the first error."""
        self._handed_over()
        with _in_options():
            self._thread.call(self._settled)

    def _handed_over(self) -> None:
        before, self._handing_over = self._handing_over, None
        if before is not None:
            with _in_options():
                before.result()

    async def _hand_over(self, topic: str, records: pa.RecordBatch) -> None:
        self._underway.append(await self._producer.send_arrow(topic, records))
        while self._underway and self._underway[0].done():
            await self._underway.popleft()

    async def _settled(self) -> None:
        await self._producer.flush()
        while self._underway:
            await self._underway.popleft()


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
