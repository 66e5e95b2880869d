"""Sends of many records in one call: lists of values, rows of Arrow columns, filled batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ottla.producer.accumulator import (
    Acknowledgement,
    Acknowledgements,
    Appender,
    ArrowRows,
    BatchBuilder,
    TopicInfo,
    arrow_rows,
)
from ottla.producer.append.metadata import ProducerMetadata
from ottla.producer.append.record_admission import BufferSpace, RecordAdmission
from ottla.producer.append.record_appender import RecordAppender, RecordSerializer
from ottla.producer.errors import NoSuchPartition, RecordTooLarge
from ottla.producer.record import Headers

BATCH_HEADER_BYTES = 61
# Records appended between two turns of the event loop: a millisecond's work or two.
RECORDS_PER_TURN = 8_192


class BulkSends:
    """Appends records without an object per record, as far as there is buffer space."""

    def __init__(
        self,
        appender: Appender,
        admission: RecordAdmission,
        serializer: RecordSerializer,
        records: RecordAppender,
        metadata: ProducerMetadata,
        buffer_space: BufferSpace,
    ) -> None:
        self._appender = appender
        self._max_record_size = appender.accumulator.max_record_size
        self._admission = admission
        self._serializer = serializer
        self._records = records
        self._metadata = metadata
        self._buffer_space = buffer_space

    async def send_many(
        self,
        topic: str,
        values: list[object],
        keys: list[object] | None,
        partition: int | None,
        timestamps_ms: list[int] | None,
        headers: Headers | None,
    ) -> Acknowledgements:
        """Append a list of values, in order."""
        out = Acknowledgements()
        info = await self._metadata.topic(topic, partition)
        records = self._serializer.columns(topic, values, keys, timestamps_ms, partition, headers)
        done = 0
        try:
            while done < records.count:
                await self._wait_for_space()
                done = self._appender.append_many(info, records, done, RECORDS_PER_TURN, out)
                await asyncio.sleep(0)
        finally:
            out.complete()
        return out

    async def send_arrow(self, topic: str, data: object, columns: dict[str, str]) -> Acknowledgements:
        """Append the rows of Arrow columns, in order."""
        self._admission.check()
        info = await self._metadata.topic(topic)
        out = Acknowledgements()
        try:
            for rows in arrow_rows(data, columns):
                done = 0
                while done < rows.count:
                    await self._wait_for_space()
                    done = await self._append_rows(info, rows, done, out)
                    await asyncio.sleep(0)
        finally:
            out.complete()
        return out

    async def _append_rows(self, info: TopicInfo, rows: ArrowRows, done: int, out: Acknowledgements) -> int:
        try:
            choose = self._records.choose(info)
            return self._appender.append_rows(info, rows, done, RECORDS_PER_TURN, out, choose)
        except NoSuchPartition as missing:  # of the first row, so that nothing was appended
            if missing.partition < 0:
                raise
            await self._metadata.topic(info.topic, missing.partition)
            return done

    async def send_batch(self, batch: BatchBuilder, topic: str, partition: int) -> Acknowledgement:
        """Append a batch that the application filled."""
        self._admission.check()
        if not batch.record_count():
            raise ValueError("the batch is empty")
        if batch.size() - BATCH_HEADER_BYTES > self._max_record_size:  # a builder takes any first record
            raise RecordTooLarge(batch.size(), self._max_record_size)
        info = await self._metadata.topic(topic, partition)
        await self._wait_for_space()
        return self._appender.append_batch(batch, info, partition)

    async def _wait_for_space(self) -> None:
        await self._buffer_space.wait()
        self._admission.check()


def check_lengths(count: int, **columns: Sequence[object] | None) -> None:
    """Raise ValueError for a column that is shorter or longer than the values."""
    for name, column in columns.items():
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} entries for {count} values")
