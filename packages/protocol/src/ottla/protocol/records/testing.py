"""For tests: the v2 format in plain, slow Python, and malformed batches with a right checksum.

The native codec is tested against this one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.protocol.records import BATCH_HEADER_SIZE, BatchBuilder, Codec, crc32c

NOW_MS = 1_700_000_000_000

_HEADER = struct.Struct(">qiibIhiqqqhii")


def a_batch(count: int = 3, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    """A batch of `count` records; `options` are for `BatchBuilder.build`."""
    builder = BatchBuilder(1 << 20, codec=codec)
    for i in range(count):
        builder.append(b"key-%d" % i, b"value-%d" % i, NOW_MS + i, [("h", b"x")] if i == 1 else None)
    return builder.build(**options)


def resealed(batch: bytes | bytearray) -> bytes:
    """The batch with its length and checksum made right again."""
    fixed = bytearray(batch)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    struct.pack_into(">I", fixed, 17, crc32c(bytes(fixed[21:])))
    return bytes(fixed)


def with_body(body: bytes, count: int = 1) -> bytes:
    """A batch that says it has `count` records, with these bytes for records."""
    batch = bytearray(a_batch(1)[:BATCH_HEADER_SIZE] + body)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    return resealed(batch)


@dataclass(frozen=True)
class ReferenceRecord:
    """One record; offset and timestamp are deltas to the batch's."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True)
class ReferenceBatch:
    """A batch without compression. Field names and order are the format's."""

    base_offset: int
    partition_leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: Sequence[ReferenceRecord] = field(default=())


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_table_entry(value) for value in range(256)]


def reference_crc32c(data: bytes) -> int:
    """The CRC-32C, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _varint(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _encode_record(record: ReferenceRecord) -> bytes:
    body = b"\0" + _varint(record.timestamp_delta) + _varint(record.offset_delta)
    body += _sized(record.key) + _sized(record.value) + _varint(len(record.headers))
    for key, value in record.headers:
        body += _sized(key.encode()) + _sized(value)
    return _varint(len(body)) + body


def encode_batch(batch: ReferenceBatch) -> bytes:
    """The bytes of a batch."""
    body = b"".join(map(_encode_record, batch.records))
    head = _HEADER.pack(
        batch.base_offset,
        _HEADER.size - 12 + len(body),
        batch.partition_leader_epoch,
        2,
        0,
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    )
    covered = head[21:] + body
    return head[:17] + struct.pack(">I", reference_crc32c(covered)) + covered


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value >> 1 ^ -(value & 1)

    def sized(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]

    def record(self) -> ReferenceRecord:
        size = self.varint()
        end = self.at + size
        self.at += 1
        timestamp_delta, offset_delta = self.varint(), self.varint()
        key, value = self.sized(), self.sized()
        headers = tuple(((self.sized() or b"").decode(), self.sized()) for _ in range(self.varint()))
        if self.at != end:
            raise ValueError(f"a record of {size} bytes ends at {self.at}, not at {end}")
        return ReferenceRecord(offset_delta, timestamp_delta, key, value, headers)


def decode_batch(data: bytes) -> ReferenceBatch:
    """Undo `encode_batch`. Of malformed batches it raises ValueError or IndexError for some, not for all."""
    offset, length, epoch, magic, crc, *fields = _HEADER.unpack_from(data)
    attributes, last_delta, first_ms, newest_ms, producer, producer_epoch, sequence, count = fields
    if magic != 2 or length != len(data) - 12 or crc != reference_crc32c(data[21:]):
        raise ValueError("not a batch")
    reader = _Reader(data[_HEADER.size :])
    records = tuple(reader.record() for _ in range(count))
    producer_state = (producer, producer_epoch, sequence)
    return ReferenceBatch(
        offset, epoch, attributes, last_delta, first_ms, newest_ms, *producer_state, records
    )
