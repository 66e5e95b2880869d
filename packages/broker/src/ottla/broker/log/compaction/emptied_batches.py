"""Entries after compaction: the header without records, and messages of older formats. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchBuilder,
    Buffer,
    Record,
    UnreadableRecords,
    crc32c,
    legacy,
    magic_at,
)

if TYPE_CHECKING:
    from ottla.broker.log.compaction.offset_map import OffsetMap

_NOT_KEPT: Final = 0x07 | 0x40
"""The attributes of codec and delete horizon."""
_CHECKED_FROM: Final = 21


def emptied(entry: Buffer) -> bytes:
    """The v2 batch without its records: it covers the same offsets, and keeps the producer's state.

    A message of an older format becomes a batch that covers its last offset.
    """
    if magic_at(entry) != 2:
        offset = legacy.read_entry(entry, check_crc=False).offset
        return BatchBuilder().build(base_offset=offset, last_offset_delta=0)
    batch = bytearray(memoryview(entry)[:BATCH_HEADER_SIZE])
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">i", batch, 8, BATCH_HEADER_SIZE - 12)
    struct.pack_into(">h", batch, 21, attributes & ~_NOT_KEPT)
    struct.pack_into(">q", batch, 27, -1)
    struct.pack_into(">i", batch, 57, 0)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    return bytes(batch)


def kept_of_legacy(
    entry: memoryview, keys: OffsetMap, keeps_tombstones: bool, max_decompressed_bytes: int
) -> Buffer | None:
    """Return the kept part of a message of format 0 or 1, or of a compressed set of them; None if nothing is.

    Raises as `records_of_legacy`.
    """
    stored, records = records_of_legacy(entry, max_decompressed_bytes)
    kept = [record for record in records if _is_kept(record, keys, keeps_tombstones)]
    if not kept:
        return None
    if len(kept) == len(records):
        return entry
    messages = [
        legacy.LegacyRecord(record.offset, record.timestamp_ms, record.key, record.value) for record in kept
    ]
    return legacy.encode_set(messages, stored.magic, codec=stored.codec, timestamp_type=stored.timestamp_type)


def records_of_legacy(
    entry: memoryview, max_decompressed_bytes: int
) -> tuple[legacy.LegacyEntry, list[Record]]:
    """Return a message of format 0 or 1 with its records.

    Raises CorruptRecords where its checksum is wrong, and UnreadableRecords where its contents are.
    """
    stored = legacy.read_entry(entry)
    try:
        return stored, list(legacy.records_of(stored, max_decompressed_bytes=max_decompressed_bytes))
    except KafkaError as error:
        raise UnreadableRecords(str(error)) from None


def _is_kept(record: Record, keys: OffsetMap, keeps_tombstones: bool) -> bool:
    if record.offset > keys.latest_offset:
        return True
    if record.key is None or record.offset < keys.get(record.key):
        return False
    return record.value is not None or keeps_tombstones
