"""The files beside a segment: entries of its indexes and searches in them, and its producer snapshot.

Offsets stand relative to the segment's base offset in four bytes. Offset and time index may be longer than
their entries: the broker allocates them whole and cuts them when the segment rolls, so searches take the
entry count.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.protocol.records import Buffer, crc32c
from ottla.protocol.storage import CorruptStorage

__all__ = [
    "OFFSET_ENTRY_SIZE",
    "TIME_ENTRY_SIZE",
    "TRANSACTION_ENTRY_SIZE",
    "AbortedTransaction",
    "OffsetEntry",
    "ProducerEntry",
    "TimeEntry",
    "decode_aborted_transactions",
    "decode_producer_snapshot",
    "encode_aborted_transaction",
    "encode_offset_entry",
    "encode_producer_snapshot",
    "encode_time_entry",
    "lookup_offset",
    "lookup_timestamp",
    "offset_entry_at",
    "time_entry_at",
]


_OFFSET = struct.Struct(">ii")
_TIME = struct.Struct(">qi")
_TRANSACTION = struct.Struct(">hqqqq")

OFFSET_ENTRY_SIZE = _OFFSET.size
TIME_ENTRY_SIZE = _TIME.size
TRANSACTION_ENTRY_SIZE = _TRANSACTION.size

_MAX_RELATIVE = 2**31 - 1

_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


class OffsetEntry(NamedTuple):
    """The batch that ends with `offset` begins at byte `position` of the log file."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """`timestamp_ms` is the largest in the segment up to `offset`, the offset of the record that has it."""

    timestamp_ms: int
    offset: int


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index: the records that a reader of committed records leaves out.

    `last_offset` is the marker's. `last_stable_offset` is the log's at the moment of the abort.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def _relative(offset: int, base_offset: int) -> int:
    relative = offset - base_offset
    if not 0 <= relative <= _MAX_RELATIVE:
        raise ValueError(f"offset {offset} is out of reach of base offset {base_offset}")
    return relative


def encode_offset_entry(entry: OffsetEntry, base_offset: int) -> bytes:
    """Eight bytes. Raises ValueError when the offset is below the base or 2 GiB above it."""
    return _OFFSET.pack(_relative(entry.offset, base_offset), entry.position)


def offset_entry_at(index: Buffer, number: int, base_offset: int) -> OffsetEntry:
    """The entry with that number, from 0."""
    relative, position = _OFFSET.unpack_from(index, number * OFFSET_ENTRY_SIZE)
    return OffsetEntry(base_offset + relative, position)


def lookup_offset(index: Buffer, entry_count: int, base_offset: int, target_offset: int) -> OffsetEntry:
    """The last entry at or below `target_offset`: scan the log from its position. The log's start if there is
    none.
    """
    number = bisect_right(
        range(entry_count), target_offset - base_offset, key=lambda i: _OFFSET.unpack_from(index, i * 8)[0]
    )
    return offset_entry_at(index, number - 1, base_offset) if number else OffsetEntry(base_offset, 0)


def encode_time_entry(entry: TimeEntry, base_offset: int) -> bytes:
    """Twelve bytes. Raises ValueError as `encode_offset_entry`."""
    return _TIME.pack(entry.timestamp_ms, _relative(entry.offset, base_offset))


def time_entry_at(index: Buffer, number: int, base_offset: int) -> TimeEntry:
    """The entry with that number, from 0."""
    timestamp_ms, relative = _TIME.unpack_from(index, number * TIME_ENTRY_SIZE)
    return TimeEntry(timestamp_ms, base_offset + relative)


def lookup_timestamp(index: Buffer, entry_count: int, base_offset: int, target_ms: int) -> TimeEntry:
    """The last entry whose time is at or before `target_ms`: no record before its offset is later than that.

    (-1, base offset) if there is none.
    """
    number = bisect_right(range(entry_count), target_ms, key=lambda i: _TIME.unpack_from(index, i * 12)[0])
    return time_entry_at(index, number - 1, base_offset) if number else TimeEntry(-1, base_offset)


def encode_aborted_transaction(entry: AbortedTransaction) -> bytes:
    """34 bytes: version 0, then the fields."""
    return _TRANSACTION.pack(0, *entry)


def decode_aborted_transactions(index: Buffer) -> Iterator[AbortedTransaction]:
    """All entries of a transaction index, in the order they were written: by last offset.

    Raises CorruptStorage, with its position, at an entry that is cut off or of a version above 0.
    """
    view = memoryview(index)
    for position in range(0, len(view), TRANSACTION_ENTRY_SIZE):
        if len(view) - position < TRANSACTION_ENTRY_SIZE:
            raise CorruptStorage(f"the aborted transaction at byte {position} is cut off", position)
        version, *fields = _TRANSACTION.unpack_from(view, position)
        if version != 0:
            raise CorruptStorage(
                f"the aborted transaction at byte {position} has version {version}", position
            )
        yield AbortedTransaction(*fields)


class ProducerEntry(NamedTuple):
    """The last batch of one producer, and the transaction it has open.

    -1 stands for none: of sequence and offset when only markers were written, of the first offset without a
    transaction. `timestamp_ms` is the batch's largest.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    coordinator_epoch: int
    current_transaction_first_offset: int


def encode_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Version 1, a CRC-32C of what follows it, a count, and 46 bytes for each producer."""
    body = [_ENTRY.pack(*entry) for entry in entries]
    data = bytearray(_HEAD.pack(_VERSION, 0, len(body)) + b"".join(body))
    struct.pack_into(">I", data, 2, crc32c(memoryview(data)[_CRC_FROM:]))
    return bytes(data)


def decode_producer_snapshot(data: bytes) -> list[ProducerEntry]:
    """Undo `encode_producer_snapshot`. Raises CorruptStorage for another version, checksum, or length."""
    if len(data) < _HEAD.size:
        raise CorruptStorage(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptStorage(f"a producer snapshot of version {version}, {_VERSION} is known", 0)
    if crc != crc32c(memoryview(data)[_CRC_FROM:]):
        raise CorruptStorage("a producer snapshot with a wrong checksum", 2)
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptStorage(f"a producer snapshot of {count} producers in {len(data)} bytes", 6)
    return [ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
