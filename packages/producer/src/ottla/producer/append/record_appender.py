"""Records into batches: `on_send`, serializers, checks of size and timestamp, partitioner, append."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ottla.client.interceptors import Interceptors
from ottla.client.serialization import when_prepared
from ottla.producer.accumulator import (
    Acknowledgement,
    Appender,
    Batch,
    RecordColumns,
    TopicInfo,
    packed_headers,
    whole_ms,
)
from ottla.producer.config import FOREVER, ProducerConfig
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
        self._serializers = serializers = config.serializers()
        self._key, self._value = serializers.key, serializers.value
        self.sees_context = serializers.see_context
        """Whether a serializer sees the headers of each record, and may add some."""
        self._max_record_size = config.max_request_size
        self._timeout_s = None if config.max_block_ms == FOREVER else config.max_block_ms / 1_000

    def shown(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record as `on_send` changed it, with headers that can be read more than once."""
        record = _with_lasting_headers(record)
        if not self._on_send:
            return record
        return _with_lasting_headers(self._interceptors.transform(self._on_send, record, ProducerRecord))

    def serialize(self, record: ProducerRecord) -> ProducerRecord:
        """Return a shown record with key and value as bytes.

        Raises SerializationFailed, RecordTooLarge, TypeError or ValueError for a timestamp, and
        UnpreparedField where `serialize_when_prepared` waits.
        """
        given = record.headers
        if self.sees_context:
            pairs = given.items() if isinstance(given, Mapping) else given
            key, value, given = self._serializers.serialize(record.topic, record.key, record.value, pairs)
        else:
            key, value = self._key(record.topic, record.key), self._value(record.topic, record.value)
        headers = packed_headers(given)
        size = len(key or b"") + len(value or b"") + len(headers or b"") + RECORD_OVERHEAD_BYTES
        if size > self._max_record_size:
            raise RecordTooLarge(size, self._max_record_size)
        if record.timestamp_ms is not None:
            whole_ms(record.timestamp_ms)  # now: a pending record is appended when the call has returned
        return record._replace(key=key, value=value, headers=given)

    async def serialize_when_prepared(self, record: ProducerRecord) -> ProducerRecord:
        """Serialize a shown record once its serializers are prepared, within `max_block_ms`."""
        return await when_prepared(partial(self.serialize, record), self._timeout_s)

    def columns(
        self,
        topic: str,
        values: list[object],
        keys: list[object] | None,
        timestamps_ms: list[int] | None,
        partition: int | None,
        headers: Headers | None,
    ) -> RecordColumns:
        """Return the records of one `send_many`, serialized without context as they are appended."""
        return RecordColumns(
            values,
            keys,
            timestamps_ms,
            partition,
            packed_headers(headers),
            serialize_key=partial(self._key, topic),
            serialize_value=partial(self._value, topic),
            takes_bytes_keys=self._serializers.pass_bytes_keys,
            takes_bytes_values=self._serializers.pass_bytes_values,
        )


def lasting(headers: Headers) -> Headers:
    """Return headers that can be read more than once: those of an iterator as a tuple."""
    return headers if isinstance(headers, Mapping | list | tuple) else tuple(headers)


def _with_lasting_headers(record: ProducerRecord) -> ProducerRecord:
    headers = lasting(record.headers)
    return record if headers is record.headers else record._replace(headers=headers)
