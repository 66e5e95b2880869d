"""The general path of `send`, for records that the compiled fast path does not take, and sends of many.

Records take it that need an interceptor, a serializer, a custom partitioner, metadata or buffer space. Sends
of many are lists of values, rows of Arrow columns, and filled batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from ottla.client.interceptors import End, Interceptors
from ottla.client.serialization import SerializerUnprepared, UnpreparedField
from ottla.producer.accumulator import (
    Acknowledgement,
    Acknowledgements,
    Appender,
    ArrowRows,
    BatchBuilder,
    TopicInfo,
    arrow_rows,
)
from ottla.producer.append.metadata import ProducerMetadata, check_topic_name
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.append.record_admission import BufferSpace, RecordAdmission
from ottla.producer.append.record_appender import RecordAppender, RecordSerializer, lasting
from ottla.producer.errors import BufferFull, NoSuchPartition, RecordTooLarge
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.record import Headers, ProducerRecord

BATCH_HEADER_BYTES = 61
# Records appended between two turns of the event loop: a millisecond's work or two.
RECORDS_PER_TURN = 8_192


class TaskOwner(Protocol):
    """Runs a coroutine as a task of its own."""

    def __call__(self, task: Coroutine[Any, Any, None], /) -> object: ...


class SendGeneralPath:
    """Takes any record, one at a time. `run` starts a task of the producer."""

    def __init__(
        self,
        appender: Appender,
        *,
        interceptors: Interceptors,
        admission: RecordAdmission,
        serializer: RecordSerializer,
        records: RecordAppender,
        metadata: ProducerMetadata,
        pending: PendingMetadata,
        buffer_space: BufferSpace,
        metrics: ProducerMetrics,
        run: TaskOwner,
    ) -> None:
        self._appender = appender
        self._accumulator = appender.accumulator
        self._interceptors = interceptors
        self._on_begin = interceptors.methods("on_begin")
        self._admission = admission
        self._serializer = serializer
        self._records = records
        self._metadata = metadata
        self._pending = pending
        self._buffer_space = buffer_space
        self._metrics = metrics
        self._run = run

    async def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        """Append a record once its topic and partition are known and there is buffer space."""
        self._admission.check()
        record = self._serializer.shown(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
        )
        try:
            record = self._serializer.serialize(record)
        except UnpreparedField:
            record = await self._serializer.serialize_when_prepared(record)
        info = await self._metadata.topic(record.topic, record.partition)
        await self._buffer_space.wait()
        await self._pause()
        self._admission.check()
        return self._records.append_and_watch(info, record)

    def send_nowait(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        """Append a record, or have it wait for metadata. Raises BufferFull and SerializerUnprepared."""
        self._admission.check()
        record = self._serializer.shown(
            ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
        )
        try:
            record = self._serializer.serialize(record)
        except UnpreparedField as unprepared:
            raise SerializerUnprepared(unprepared.field, unprepared.topic) from None
        self._check_space()
        info = self._metadata.known(record.topic)
        if info is not None and (record.partition is None or record.partition < info.count):
            return self._records.append_and_watch(info, record)
        return self._wait_for_metadata(record)

    def _check_space(self) -> None:
        """Raise BufferFull at a limit; records that wait for metadata count, too."""
        accumulator = self._accumulator
        waiting_bytes = accumulator.size_bytes + self._pending.size_bytes
        waiting_records = accumulator.record_count + self._pending.record_count
        if waiting_bytes >= accumulator.buffer_memory or waiting_records >= accumulator.max_records:
            self._metrics.buffer_exhausted_total += 1
            raise BufferFull(
                waiting_bytes,
                accumulator.buffer_memory,
                waiting_records=waiting_records,
                max_records=accumulator.max_records,
            )

    async def send_each(
        self,
        topic: str,
        values: list[object],
        keys: list[object] | None,
        partition: int | None,
        timestamps_ms: list[int] | None,
        headers: Headers | None,
    ) -> Acknowledgements:
        """Take many records as `send` takes one."""
        headers = lasting(headers or ())
        out = Acknowledgements()
        try:
            for index, value in enumerate(values):
                key = None if keys is None else keys[index]
                timestamp_ms = None if timestamps_ms is None else timestamps_ms[index]
                out.add(await self.send(topic, value, key, partition, timestamp_ms, headers))
        finally:
            out.complete()
        return out

    def _wait_for_metadata(self, record: ProducerRecord) -> Acknowledgement:
        check_topic_name(record.topic)
        if record.topic not in self._pending:
            self._run(self._metadata.find_for_pending(record.topic))
        waiting = self._pending.add(record)
        self._records.watch(waiting)  # already now: the record may never be appended
        return waiting

    async def _pause(self) -> None:
        # Once per so many bytes: a loop of sends would never suspend otherwise.
        if self._appender.is_pause_due():
            await asyncio.sleep(0)
            self._appender.pause_later()


class ObservedSends(SendGeneralPath):
    """The general path of a producer whose interceptors observe each record until it is acknowledged."""

    async def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        """Send a record as any, between `on_begin` and the function that it returns."""
        given = ProducerRecord(topic, value, key, partition, timestamp_ms, lasting(headers or ()))
        record, end = self._interceptors.begin(self._on_begin, given)
        try:
            sent = await super().send(*record)
        except BaseException as error:
            end(None, error)
            raise
        sent.add_done_callback(partial(_ended, end))
        return sent

    def send_nowait(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement:
        """Send a record as any, between `on_begin` and the function that it returns."""
        given = ProducerRecord(topic, value, key, partition, timestamp_ms, lasting(headers or ()))
        record, end = self._interceptors.begin(self._on_begin, given)
        try:
            sent = super().send_nowait(*record)
        except BaseException as error:
            end(None, error)
            raise
        sent.add_done_callback(partial(_ended, end))
        return sent


def _ended(end: End, sent: Acknowledgement) -> None:
    error = sent.exception()
    end(sent.result() if error is None else None, error)


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
