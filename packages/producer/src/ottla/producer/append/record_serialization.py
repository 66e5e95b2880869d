"""Serialization of records: `on_send`, serializers, checks of size and timestamp."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ottla.client.interceptors import Interceptors
from ottla.client.serialization import SerializationFailed, passes_bytes, serializer
from ottla.producer.accumulator import RecordColumns, packed_headers, whole_ms
from ottla.producer.config import ProducerConfig
from ottla.producer.errors import RecordTooLarge
from ottla.producer.record import RECORD_OVERHEAD_BYTES, Headers, ProducerRecord


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
