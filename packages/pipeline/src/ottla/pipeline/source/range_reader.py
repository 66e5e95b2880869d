"""Tasks of the source: each reads a range of offsets as rows.

A Spark worker process runs many tasks, one after another, and keeps the consumer with its connections between
them. While Spark processes one batch, the next one is fetched and decoded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress

from ottla.client.blocking import Call, LoopThread, NotRunning
from ottla.consumer import Consumer
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import OffsetOutOfRange, UnreadableBatch
from ottla.pipeline.cost import worker_cost
from ottla.pipeline.errors import DataLoss, PipelineError, report_loss
from ottla.pipeline.lazy import pa, pc
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offsets import OffsetRange
from ottla.pipeline.source.spark_rows import Rows
from ottla.pipeline.spark_workers import ProcessCache
from ottla.protocol.storage.checkpoints import encode_uuid

BATCH_BYTES = 4 * 1024 * 1024
"""The approximate number of fetched bytes in one batch."""

_MOST_READERS = 4


class FetchTimedOut(PipelineError):
    """The leader of a partition returned no records within the timeout."""


class SourceConsumer:
    """A consumer on a thread of its own, for one configuration."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._thread = LoopThread(lambda: Consumer(config=config), name="a source of Spark")

    def start(self) -> Consumer:
        """Return the connected consumer."""
        return self._thread.start()

    def close(self, timeout_s: float | None = None) -> None:
        """Close the consumer. Raises its errors, and TimeoutError if it takes too long."""
        self._thread.close(timeout_s)

    def read(
        self, wanted: OffsetRange, topic_id: str | None, rows: Rows, config: SourceConfig
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range. Raises DataLoss, also if its topic has another id."""
        consumer = self.start()
        task = RangeReader(consumer, wanted, topic_id, rows, config)
        self._thread.call(task.begin)
        following: Call[pa.RecordBatch | None] = self._thread.submit(task.next)
        try:
            while (batch := following.result()) is not None:
                following = self._thread.submit(task.next)
                if batch.num_rows:
                    yield batch
        finally:
            following.cancel()
            with suppress(NotRunning):  # the consumer is closed, and its fetched records with it
                self._thread.call(task.end)


class RangeReader:
    """Reads one range; all methods run on the consumer's loop."""

    def __init__(
        self,
        consumer: Consumer,
        wanted: OffsetRange,
        topic_id: str | None,
        rows: Rows,
        config: SourceConfig,
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._topic_id = topic_id
        self._rows = rows
        self._config = config
        self._until = {wanted.partition: wanted.end}
        self._following = wanted.start
        self._is_lost = False
        """The topic is another one now, and that is allowed: nothing is left to read."""

    async def begin(self) -> None:
        """Seek to the first offset. Raises DataLoss."""
        await self._check_topic_id()
        self._consumer.assign([self._wanted.partition])
        self._consumer.seek(self._wanted.partition, self._wanted.start)

    async def end(self) -> None:
        """Drop the records that were fetched ahead."""
        self._consumer.assign([])

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows; None at the end. Raises DataLoss, FetchTimedOut."""
        while not self._is_lost:
            try:
                return await self._next()
            except OffsetOutOfRange:
                if not await self._leave_out():
                    return None
            except UnreadableBatch as error:
                self._leave_out_batch(error)
        return None

    async def _next(self) -> pa.RecordBatch | None:
        batch = await self._consumer.fetch_arrow(
            timeout_ms=self._config.poll_timeout_ms,
            max_bytes=BATCH_BYTES,
            columns=self._rows.columns,
            until=self._until,
        )
        if (cost := worker_cost()) is not None:
            cost.add(batch.nbytes)
        if not batch.num_rows:
            # A topic that was created again while it was read may have given records, too.
            await self._check_topic_id()
            if not self._is_lost:
                await self._refuse_silence()
            return None
        if (first := batch.column("offset")[0].as_py()) < self._following:
            # The consumer noticed that the topic was created again, and went to its beginning.
            self._report_recreated(f"its offset {first} was returned")
            return None
        self._following = batch.column("offset")[batch.num_rows - 1].as_py() + 1
        inside = _below(batch, self._wanted.end)
        return self._rows.of(inside, self._wanted.partition) if inside.num_rows else None

    async def _check_topic_id(self) -> None:
        if self._topic_id is None:
            return
        found = await self._consumer.topic_id(self._wanted.partition.topic)
        if found is not None and encode_uuid(found) != self._topic_id:
            self._report_recreated(f"its id is {encode_uuid(found)}, and was {self._topic_id}")

    def _report_recreated(self, how: str) -> None:
        """Raise DataLoss, or log it and end this range if that is allowed."""
        partition = self._wanted.partition
        what = (
            f"topic {partition.topic!r} was deleted and created again ({how}): offsets from "
            f"{self._following} of {partition} are lost"
        )
        report_loss(DataLoss(what), fails=self._config.fail_on_data_loss)
        self._is_lost = True

    async def _refuse_silence(self) -> None:
        position = await self._consumer.position(self._wanted.partition)
        if position < self._wanted.end:
            raise FetchTimedOut(
                f"no records of {self._wanted.partition} at offset {position} arrived within "
                f"{self._config.poll_timeout_ms} ms; option kafkaConsumer.pollTimeoutMs sets this "
                "timeout"
            )

    def _leave_out_batch(self, error: UnreadableBatch) -> None:
        """Go on behind a batch that cannot be read, if that is allowed. Raises DataLoss."""
        report_loss(unreadable(error), fails=self._config.fail_on_data_loss)
        self._following = error.next_offset
        self._consumer.seek(self._wanted.partition, error.next_offset)

    async def _leave_out(self) -> bool:
        """Skip lost offsets if that is allowed; return whether anything is left to read."""
        partition, lost_from = self._wanted.partition, self._following
        first = (await self._consumer.beginning_offsets([partition]))[partition]
        last = (await self._consumer.end_offsets([partition]))[partition]
        what = (
            f"offsets from {lost_from} of {partition} are lost: it has those from {first} up to "
            f"{last} now, and those up to {self._wanted.end} were requested"
        )
        report_loss(DataLoss(what), fails=self._config.fail_on_data_loss)
        self._following = first
        if not lost_from < first < min(self._wanted.end, last):
            return False
        self._consumer.seek(partition, first)
        return True


def unreadable(error: UnreadableBatch) -> DataLoss:
    """Return the loss of the rest of a batch that a consumer cannot read."""
    problem = str(error).removesuffix(f"; to skip this batch, seek to offset {error.next_offset}")
    return DataLoss(problem, "The batch was stored like this, or its file is damaged on the broker. ")


def _below(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Return the part of a batch with offsets below `end`, without a copy."""
    offsets = batch.column("offset")
    if offsets[batch.num_rows - 1].as_py() < end:
        return batch
    return batch.slice(0, pc.sum(pc.less(offsets, end)).as_py())


_readers: ProcessCache[SourceConsumer] = ProcessCache("a consumer of the source", _MOST_READERS)


def consumer_for(config: SourceConfig) -> SourceConsumer:
    """Return this process's consumer for a configuration; close the least recently used one if full."""
    return _readers.get(_key(config), lambda: SourceConsumer(config.consumer_config()))


def forget_consumer(config: SourceConfig) -> None:
    """Close a consumer that failed; the next task connects again."""
    _readers.forget(_key(config))


def _key(config: SourceConfig) -> Hashable:
    return tuple(sorted(config.consumer.items()))
