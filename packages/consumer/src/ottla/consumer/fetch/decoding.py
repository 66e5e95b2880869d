"""Decode records from fetched bytes. The work is native (`_records.pyx`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from ottla.client.serialization import (
    DeserializationContext,
    DeserializerSpec,
    RecordField,
    context_deserializer,
    deserializer,
)
from ottla.consumer._records import RecordCursor, end_of
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import UnreadableBatch, unreadable_batch
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import Buffer, Codec
from ottla.protocol.topics import TopicPartition

__all__ = ["Decoded", "RecordCursor", "RecordDecoder", "decode", "decompression_ms", "end_of"]

# Compressed bytes that one core decompresses in a millisecond, a cautious estimate.
_BYTES_PER_MS = {Codec.GZIP: 50_000, Codec.SNAPPY: 200_000, Codec.LZ4: 200_000, Codec.ZSTD: 100_000}


_AT_ONCE = 10_000


class Decoded(NamedTuple):
    """Decoded records, and the offset to fetch next."""

    records: list[ConsumerRecord[Any, Any]]
    next_offset: int


class DecodingSettings(Protocol):
    """The settings by which records are decoded, of consumers of any kind."""

    @property
    def check_crcs(self) -> bool:
        """Whether checksums are verified."""

    @property
    def max_decompressed_batch_bytes(self) -> int:
        """The largest batch that is decompressed."""

    @property
    def key_deserializer(self) -> DeserializerSpec:
        """The deserializer of keys."""

    @property
    def value_deserializer(self) -> DeserializerSpec:
        """The deserializer of values."""

    @property
    def key_type(self) -> Any:
        """The type of keys."""

    @property
    def value_type(self) -> Any:
        """The type of values."""


class RecordDecoder:
    """Makes cursors that decode records as the consumer's configuration says."""

    def __init__(self, config: DecodingSettings) -> None:
        self._check_crcs = config.check_crcs
        self._max_decompressed_bytes = config.max_decompressed_batch_bytes
        self._key_deserializer, self._key_sees_record = _deserializer(config.key_deserializer, "key")
        self._value_deserializer, self._value_sees_record = _deserializer(config.value_deserializer, "value")
        self._key_takes_none = self._value_takes_none = False
        if config.key_type is not None:
            self._key_deserializer, self._key_takes_none = config.key_type.deserializer, True
        if config.value_type is not None:
            self._value_deserializer, self._value_takes_none = config.value_type.deserializer, True

    def cursor(
        self,
        partition: TopicPartition,
        data: Buffer,
        offset: int,
        aborted: Sequence[AbortedTransaction] | None,
    ) -> RecordCursor:
        """Return a cursor over the records of `data` at or above an offset."""
        return RecordCursor(
            partition,
            data,
            offset,
            abortions(aborted),
            check_crcs=self._check_crcs,
            max_decompressed_bytes=self._max_decompressed_bytes,
            key_deserializer=self._key_deserializer,
            value_deserializer=self._value_deserializer,
            key_sees_record=self._key_sees_record,
            value_sees_record=self._value_sees_record,
            key_takes_none=self._key_takes_none,
            value_takes_none=self._value_takes_none,
        )


def _deserializer(spec: DeserializerSpec, field: RecordField) -> tuple[Callable[..., Any] | None, bool]:
    """Return a deserializer as cursors call it, and whether it is given the record beside the bytes."""
    in_context = context_deserializer(spec)
    if in_context is None:
        return deserializer(spec), False

    def deserialize(data: bytes, record: ConsumerRecord[Any, Any]) -> Any:
        context = DeserializationContext(record.topic, record.partition, record.offset, field, record.headers)
        return in_context(data, context)

    return deserialize, True


def decode(
    partition: TopicPartition,
    data: bytes | memoryview,
    position: int,
    aborted: Sequence[AbortedTransaction] | None = None,
    *,
    check_crcs: bool = True,
) -> Decoded:
    """Return the records at or above `position`.

    The first batch may begin before the offset that was asked for, and the last one may be cut off. Control
    records are skipped; with `aborted`, records of those transactions too (KIP-98). The next offset also
    skips batches that compaction emptied. Raises UnreadableBatch if there are no records before such a batch.
    """
    cursor = RecordCursor(partition, data, position, abortions(aborted), check_crcs=check_crcs)
    records: list[ConsumerRecord[Any, Any]] = []
    try:
        while more := cursor.take(_AT_ONCE):
            records += more
    except UnreadableBatch:
        if not records:
            raise
    return Decoded(records, cursor.position)


def raise_unreadable(
    partition: TopicPartition,
    data: Buffer,
    position: int,
    aborted: Sequence[AbortedTransaction] | None,
    cause: KafkaError,
    config: ConsumerConfig,
) -> NoReturn:
    """Raise the UnreadableBatch of data in which another reader met `cause` at or behind a position."""
    cursor = RecordCursor(
        partition,
        data,
        position,
        abortions(aborted),
        check_crcs=config.check_crcs,
        max_decompressed_bytes=config.max_decompressed_batch_bytes,
    )
    while cursor.take(_AT_ONCE):
        pass
    raise unreadable_batch(cause, partition, cursor.position, cursor.position + 1) from cause


def abortions(aborted: Sequence[AbortedTransaction] | None) -> list[tuple[int, int]] | None:
    """Return aborted transactions as cursors take them: pairs of first offset and producer id."""
    return (
        [(transaction.first_offset, transaction.producer_id) for transaction in aborted] if aborted else None
    )


def decompression_ms(cursor: RecordCursor) -> float:
    """Estimate how long decompressing the batches ahead of a cursor takes."""
    sizes = cursor.compressed_sizes()
    return sum(size / _BYTES_PER_MS.get(Codec(codec), 50_000) for codec, size in sizes.items() if codec <= 4)
