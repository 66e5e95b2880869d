"""Records into batches: `on_send`, serializers, checks of size and timestamp, partitioner, append."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ottla.client.interceptors import Interceptors
from ottla.client.serialization import SerializationFailed, passes_bytes, serializer
from ottla.producer.accumulator import (
    Acknowledgement,
    Appender,
    Batch,
    RecordColumns,
    TopicInfo,
    packed_headers,
    whole_ms,
)
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import RecordTooLarge
from ottla.producer.partitioner import Partitioner
from ottla.producer.record import RECORD_OVERHEAD_BYTES, Headers, ProducerRecord


class RecordAppender:
    """Appends one serialized record at a time, and calls the partitioner and the interceptors for it."""

    def __init__(
        self, appender: Appender, partitioner: Partitioner | None, interceptors: Interceptors
    ) -> None:
        self._appender = appender
        self._accumulator = appender.accumulator
        self._partitioner = partitioner
        self._batch_full = getattr(partitioner, "batch_full", None)
        self._interceptors = interceptors
        self._on_enqueue = interceptors.methods("on_enqueue")
        self._on_batch = interceptors.methods("on_batch")
        self._on_acknowledgement = interceptors.methods("on_acknowledgement")

    def append(self, info: TopicInfo, record: ProducerRecord) -> Acknowledgement:
        """Append a serialized record.

        Raises NoSuchPartition if the topic does not have its partition, ValueError if the partitioner chose
        such a one.
        """
        partition, is_chosen = record.partition, False
        if partition is None and self._partitioner is not None:
            partition, is_chosen = _chosen(self._partitioner, info, record.key), True
        begun = self._accumulator.batches_begun
        sent = self._appender.append(
            info,
            record.key,
            record.value,
            partition,
            record.timestamp_ms,
            packed_headers(record.headers),
            is_chosen,
        )
        if self._batch_full is not None and self._accumulator.batches_begun > begun:
            self._batch_full(info.topic)
        if self._on_enqueue:
            self._interceptors.tell(self._on_enqueue, sent.topic_partition, record)
        return sent

    def append_and_watch(self, info: TopicInfo, record: ProducerRecord) -> Acknowledgement:
        """Append a serialized record, and call `on_acknowledgement` once it is written or failed."""
        sent = self.append(info, record)
        self.watch(sent)
        return sent

    def watch(self, sent: Acknowledgement) -> None:
        """Call `on_acknowledgement` once a record is written or failed."""
        if self._on_acknowledgement:
            sent.add_done_callback(self._acknowledged)

    def choose(self, info: TopicInfo) -> Callable[[bytes | None], int] | None:
        """Return a function of a key that calls the custom partitioner, and `batch_full` for full batches."""
        partitioner, batch_full, accumulator = self._partitioner, self._batch_full, self._accumulator
        if partitioner is None:
            return None
        begun = accumulator.batches_begun

        def choose(key: bytes | None) -> int:
            nonlocal begun
            if batch_full is not None and accumulator.batches_begun > begun:
                begun = accumulator.batches_begun
                batch_full(info.topic)
            return _chosen(partitioner, info, key)

        return choose

    @property
    def batch_listener(self) -> Callable[[Batch], None] | None:
        """The function to call for a batch as it is sent, or None where no interceptor has `on_batch`."""
        return self._batch_sent if self._on_batch else None

    def _batch_sent(self, batch: Batch) -> None:
        self._interceptors.tell(self._on_batch, batch.partition, batch.record_count, len(batch.data or b""))

    def _acknowledged(self, sent: Acknowledgement) -> None:
        error = sent.exception()
        metadata = sent.result() if error is None else None
        self._interceptors.tell(self._on_acknowledgement, metadata, error)


def _chosen(partitioner: Partitioner, info: TopicInfo, key: bytes | None) -> int:
    """Return the partition that a custom partitioner chooses. Raises ValueError for one that is not there."""
    partition = partitioner.partition(info.topic, key, info.count, info.available)
    if not 0 <= partition < info.count:
        raise ValueError(
            f"the partitioner chose {partition} for {info.topic!r}, which has 0 to {info.count - 1}"
        )
    return partition


class RecordSerializer:
    """Calls `on_send` and the serializers, and rejects records that cannot be sent."""

    def __init__(self, interceptors: Interceptors, config: ProducerConfig) -> None:
        self._interceptors = interceptors
        self._on_send = interceptors.methods("on_send")
        self._serialize_key = serializer(config.key_serializer, is_key=True)
        self._serialize_value = serializer(config.value_serializer)
        self._max_record_size = config.max_request_size

    def serialize(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record as `on_send` changed it, with key and value as bytes.

        Raises SerializationFailed, RecordTooLarge, and TypeError or ValueError for a timestamp.
        """
        record = _with_lasting_headers(record)
        if self._on_send:
            record = _with_lasting_headers(
                self._interceptors.transform(self._on_send, record, ProducerRecord)
            )
        key, value = self.key(record.topic, record.key), self.value(record.topic, record.value)
        headers = packed_headers(record.headers)
        size = len(key or b"") + len(value or b"") + len(headers or b"") + RECORD_OVERHEAD_BYTES
        if size > self._max_record_size:
            raise RecordTooLarge(size, self._max_record_size)
        if record.timestamp_ms is not None:
            whole_ms(record.timestamp_ms)  # now: a pending record is appended when the call has returned
        return record._replace(key=key, value=value)

    def columns(
        self,
        topic: str,
        values: list[object],
        keys: list[object] | None,
        timestamps_ms: list[int] | None,
        partition: int | None,
        headers: Headers | None,
    ) -> RecordColumns:
        """Return the records of one `send_many`, which are serialized as they are appended."""
        return RecordColumns(
            values,
            keys,
            timestamps_ms,
            partition,
            packed_headers(headers),
            serialize_key=partial(self.key, topic),
            serialize_value=partial(self.value, topic),
            takes_bytes_keys=passes_bytes(self._serialize_key),
            takes_bytes_values=passes_bytes(self._serialize_value),
        )

    def key(self, topic: str, key: Any) -> bytes | None:
        """Serialize a key. Raises SerializationFailed."""
        try:
            return None if key is None else _bytes(self._serialize_key(key))
        except Exception as error:
            raise SerializationFailed("key", topic, error) from error

    def value(self, topic: str, value: Any) -> bytes | None:
        """Serialize a value. Raises SerializationFailed."""
        try:
            return None if value is None else _bytes(self._serialize_value(value))
        except Exception as error:
            raise SerializationFailed("value", topic, error) from error


def lasting(headers: Headers) -> Headers:
    """Return headers that can be read more than once: those of an iterator as a tuple."""
    return headers if isinstance(headers, Mapping | list | tuple) else tuple(headers)


def _with_lasting_headers(record: ProducerRecord) -> ProducerRecord:
    headers = lasting(record.headers)
    return record if headers is record.headers else record._replace(headers=headers)


def _bytes(serialized: object) -> bytes | None:
    """Convert what an application's serializer returned: native code takes nothing but bytes."""
    if serialized is None or type(serialized) is bytes:
        return serialized
    if isinstance(serialized, bytes | bytearray | memoryview):
        return bytes(serialized)
    raise TypeError(f"the serializer returned {type(serialized).__name__}, not bytes")
