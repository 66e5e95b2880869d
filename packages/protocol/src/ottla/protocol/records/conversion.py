"""Conversion between record formats, as old clients need it, and between codecs, as topics with their own do.

Up when an old client produces, down when an old client fetches.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import chain

from ottla.protocol.errors import KafkaError, UnsupportedCompressionType
from ottla.protocol.records import legacy
from ottla.protocol.records._codec import (
    BatchBuilder,
    Record,
    RecordIterator,
    crc32c,
    magic_at,
    read_header,
    scan_records,
    split_batches,
)
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES, Buffer, compress, decompress
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.types import Codec, TimestampType

__all__ = ["convert_down", "convert_to_v2", "recompress"]

_NO_LIMIT = 2**31 - 1
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _RECORDS_AT = 8, 17, 21, 35, 61
_CODEC_MASK = 0x07


def recompress(
    batch: Buffer,
    codec: Codec,
    *,
    level: int | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The same v2 batch with its records in another codec; no record is looked at one by one.

    Raises DecompressedTooLarge beyond the limit, and CorruptRecords where header and records disagree.
    """
    view = memoryview(batch)
    header = read_header(view)
    scan = scan_records(view, max_decompressed_bytes=max_decompressed_bytes, dense=True)
    plain = decompress(header.codec, view[_RECORDS_AT:], max_bytes=max_decompressed_bytes)
    packed = compress(codec, plain, level=level)
    out = bytearray(_RECORDS_AT + len(packed))
    out[:_RECORDS_AT] = view[:_RECORDS_AT]
    out[_RECORDS_AT:] = packed
    struct.pack_into(">i", out, _LENGTH_AT, len(out) - legacy.LOG_OVERHEAD)
    struct.pack_into(">h", out, _ATTRIBUTES_AT, header.attributes & ~_CODEC_MASK | codec)
    if header.timestamp_type is TimestampType.CREATE_TIME:
        struct.pack_into(">q", out, _MAX_TIMESTAMP_AT, scan.max_timestamp)
    struct.pack_into(">I", out, _CRC_AT, crc32c(memoryview(out)[_ATTRIBUTES_AT:]))
    return bytes(out)


def convert_to_v2(
    legacy_set: Buffer,
    now_ms: int | None = None,
    *,
    codec: Codec | None = None,
    level: int | None = None,
    base_offset: int = 0,
    keep_offsets: bool = False,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """One v2 batch with every message of a set of magic 0 or 1.

    `now_ms` makes its time the log append time; without it the messages keep theirs, and those of magic 0
    have none (-1). `codec` is the target's, by default that of the last entry, and `level` its level.
    Offsets count from `base_offset`, unless `keep_offsets` keeps what the set says, gaps included.
    Raises CorruptRecords for a malformed set, also where checksums fail inside a wrapper or there is no
    message.
    """
    entries = list(legacy.iter_entries(legacy_set))
    if not entries:
        raise CorruptRecords("a message set without messages")
    builder = BatchBuilder(_NO_LIMIT, codec=entries[-1].codec if codec is None else codec, level=level)
    records = _bounded_records(entries, max_decompressed_bytes)
    if keep_offsets:
        first = next(records)
        base_offset = first.offset
        records = chain((first,), records)
    for record in records:
        delta = record.offset - base_offset if keep_offsets else None
        _append(builder, record, delta)
    return builder.build(base_offset=base_offset, log_append_time_ms=now_ms)


def _append(builder: BatchBuilder, record: Record, offset_delta: int | None) -> None:
    try:
        builder.append(record.key, record.value, record.timestamp_ms, offset_delta=offset_delta)
    except ValueError as error:
        raise CorruptRecords(f"the message at offset {record.offset} cannot be converted: {error}") from None


def _bounded_records(entries: Iterable[legacy.LegacyEntry], max_decompressed_bytes: int) -> Iterator[Record]:
    """All messages; the bound holds for the set, not for each wrapper in it."""
    left = max_decompressed_bytes
    for entry in entries:
        for record in legacy.records_of(entry, max_decompressed_bytes=max(left, 0)):
            yield record
            if entry.codec != Codec.NONE:
                left -= legacy.LOG_OVERHEAD + legacy.RECORD_OVERHEAD[entry.magic]
                left -= len(record.key or b"") + len(record.value or b"")


def convert_down(
    batches: Buffer,
    to_magic: int,
    *,
    first_offset: int = 0,
    enough_bytes: int = _NO_LIMIT,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> bytes:
    """The same records for a client that reads up to `to_magic`, 0 or 1.

    Neither the decompressed records of a batch nor what they become may exceed the limit (MessageTooLarge).

    Offsets, times and compression stay; headers go, times go in magic 0, and control batches are left out.
    Entries of an old enough format stay as they are. Uncompressed records below `first_offset` are left out.
    An incomplete batch at the end, as a fetch may leave it, is ignored. The result may be empty. It ends with
    the batch that brings it to `enough_bytes`, and before one that cannot be converted.
    Raises UnsupportedCompressionType for zstd, which the old formats do not have (KIP-110), and
    CorruptRecords, unless there is something to return from the batches before.
    """
    converted = bytearray()
    for entry in split_batches(batches, torn_tail=True):
        try:
            converted += _down(entry, to_magic, first_offset, max_decompressed_bytes)
        except KafkaError:
            if not converted:
                raise
            break  # the reader asks again from there, and is told then
        if len(converted) >= enough_bytes:
            break
    return bytes(converted)


def _down(entry: memoryview, to_magic: int, first_offset: int, max_decompressed_bytes: int) -> Buffer:
    magic = magic_at(entry)
    if magic <= to_magic:
        return entry
    if magic == 2:
        return _down_from_2(entry, to_magic, first_offset, max_decompressed_bytes)
    source = legacy.read_entry(entry, check_crc=False)
    records = legacy.records_of(source, max_decompressed_bytes=max_decompressed_bytes, check_crc=False)
    return _encode(
        records, to_magic, source.codec, source.timestamp_type, first_offset, max_decompressed_bytes
    )


def _down_from_2(batch: memoryview, to_magic: int, first_offset: int, max_decompressed_bytes: int) -> bytes:
    header = read_header(batch)
    if header.is_control:
        return b""
    codec = header.codec
    if codec == Codec.ZSTD:
        raise UnsupportedCompressionType(f"zstd does not exist in magic {to_magic}")
    records = RecordIterator(batch, max_decompressed_bytes=max_decompressed_bytes)
    return _encode(records, to_magic, codec, header.timestamp_type, first_offset, max_decompressed_bytes)


def _encode(
    records: Iterable[Record],
    magic: int,
    codec: Codec,
    timestamp_type: TimestampType,
    first_offset: int,
    max_bytes: int,
) -> bytes:
    kept = (
        legacy.LegacyRecord(record.offset, record.timestamp_ms, record.key, record.value)
        for record in records
        if codec != Codec.NONE or record.offset >= first_offset
    )
    return legacy.encode_set(kept, magic, codec=codec, timestamp_type=timestamp_type, max_bytes=max_bytes)
