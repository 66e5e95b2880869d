"""Message sets of magic 0 and 1, which Kafka wrote before 0.11 and old clients still send and ask for.

An entry is offset int64, size int32, CRC-32 int32 (of all that follows), magic, attributes, in magic 1 a
timestamp int64, then key and value with int32 lengths, -1 for null. A compressed entry (a wrapper) holds a
whole message set as its value and carries the offset of its last message; the messages inside have absolute
offsets in magic 0 and offsets relative to the first in magic 1 (KIP-31). Wrappers do not nest.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.errors import MessageTooLarge
from ottla.protocol.records._codec import Record
from ottla.protocol.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Buffer,
    compress,
    decompress,
)
from ottla.protocol.records.errors import CorruptRecords
from ottla.protocol.records.types import NO_TIMESTAMP, Codec, TimestampType

__all__ = [
    "LOG_OVERHEAD",
    "RECORD_OVERHEAD",
    "LegacyEntry",
    "LegacyRecord",
    "encode_entry",
    "encode_set",
    "iter_entries",
    "iter_records",
    "read_entry",
    "records_of",
]

LOG_OVERHEAD = 12
"""Offset and size in front of every message."""
RECORD_OVERHEAD = {0: 14, 1: 22}
"""Bytes of a message with neither key nor value, by magic."""

_CODEC_MASK = 0x07
_NO_LIMIT = 2**31 - 1
_LOG_APPEND_TIME = 0x08
_HEADERS = {0: struct.Struct(">qiIBB"), 1: struct.Struct(">qiIBBq")}
_LENGTH = struct.Struct(">i")


class LegacyRecord(NamedTuple):
    """One message to be written: its absolute offset, its time (ignored in magic 0), key and value."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LegacyEntry:
    """One entry as it stands in the set: a message, or a wrapper when `codec` is not NONE."""

    offset: int
    size_in_bytes: int
    crc: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> Codec:
        """Raises CorruptRecords for a codec that magic 0 and 1 do not have."""
        codec = self.attributes & _CODEC_MASK
        if codec > Codec.LZ4:
            raise CorruptRecords(f"compression type {codec} does not exist in magic {self.magic}")
        return Codec(codec)

    @property
    def timestamp_type(self) -> TimestampType:
        """The meaning of `timestamp_ms`; CREATE_TIME in magic 0, which has none."""
        appended = self.magic == 1 and self.attributes & _LOG_APPEND_TIME
        return TimestampType.LOG_APPEND_TIME if appended else TimestampType.CREATE_TIME


def read_entry(buffer: Buffer, position: int = 0, *, check_crc: bool = True) -> LegacyEntry:
    """The entry at `position`; its key and value are views of the buffer.

    Raises CorruptRecords when it is cut off, of another magic, fails its checksum, or its lengths do not add
    up.
    """
    view = memoryview(buffer)
    size = _whole_entry_size(view, position)
    magic = view[position + 16]
    header = _HEADERS[magic]
    offset, _, crc, _, attributes, timestamp_ms = (*header.unpack_from(view, position), NO_TIMESTAMP)[:6]
    body = view[position + header.size : position + size]
    if check_crc and zlib.crc32(view[position + 16 : position + size]) != crc:
        raise CorruptRecords(f"the message at offset {offset} fails its checksum")
    key, rest = _take(body)
    value, rest = _take(rest)
    if len(rest):
        raise CorruptRecords(f"{len(rest)} bytes follow the value of the message at offset {offset}")
    return LegacyEntry(offset, size, crc, magic, attributes, timestamp_ms, key, value)


def _whole_entry_size(view: memoryview, position: int) -> int:
    available = len(view) - position
    if position < 0 or available <= 16:
        raise CorruptRecords(f"{available} bytes at byte {position} are too few for a message")
    size = LOG_OVERHEAD + int(_LENGTH.unpack_from(view, position + 8)[0])
    magic = view[position + 16]
    if magic not in RECORD_OVERHEAD:
        raise CorruptRecords(f"the message at byte {position} has magic {magic}, 0 or 1 is needed here")
    if not LOG_OVERHEAD + RECORD_OVERHEAD[magic] <= size <= available:
        raise CorruptRecords(
            f"the message at byte {position} says it is {size} bytes long, {available} are there"
        )
    return size


def _take(view: memoryview) -> tuple[memoryview | None, memoryview]:
    """A key or value, and what follows it."""
    if len(view) < 4:
        raise CorruptRecords("a message ends before its key and value do")
    size = int(_LENGTH.unpack_from(view)[0])
    if size < -1 or size > len(view) - 4:
        raise CorruptRecords(f"a key or value of {size} bytes where {len(view) - 4} are left")
    if size == -1:
        return None, view[4:]
    return view[4 : 4 + size], view[4 + size :]


def iter_entries(buffer: Buffer, *, check_crc: bool = True) -> Iterator[LegacyEntry]:
    """Every entry of a message set, wrappers unopened."""
    view = memoryview(buffer)
    position = 0
    while position < len(view):
        entry = read_entry(view, position, check_crc=check_crc)
        yield entry
        position += entry.size_in_bytes


def iter_records(
    buffer: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES, check_crc: bool = True
) -> Iterator[Record]:
    """Every message of a message set with its absolute offset, wrappers opened."""
    for entry in iter_entries(buffer, check_crc=check_crc):
        yield from records_of(entry, max_decompressed_bytes=max_decompressed_bytes, check_crc=check_crc)


def records_of(
    entry: LegacyEntry,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    check_crc: bool = True,
) -> Iterator[Record]:
    """The messages of one entry: itself, or what it wraps."""
    if entry.codec == Codec.NONE:
        yield _record(entry, entry.offset, entry.timestamp_ms)
        return
    plain = _unwrapped(entry, max_decompressed_bytes)
    first_offset = _offset_of_relative_zero(entry, _last_offset(plain))
    appended = entry.timestamp_type == TimestampType.LOG_APPEND_TIME
    for message in iter_entries(plain, check_crc=check_crc):
        _check_inner(message, entry)
        yield _record(
            message, first_offset + message.offset, entry.timestamp_ms if appended else message.timestamp_ms
        )


def _unwrapped(wrapper: LegacyEntry, max_decompressed_bytes: int) -> bytearray:
    if wrapper.value is None:
        raise CorruptRecords(f"the compressed message at offset {wrapper.offset} is null")
    plain = decompress(wrapper.codec, wrapper.value, max_bytes=max_decompressed_bytes, magic=wrapper.magic)
    if not plain:
        raise CorruptRecords(f"the compressed message at offset {wrapper.offset} is empty")
    return plain


def _last_offset(plain: bytearray) -> int:
    """The offset of the last message. Only sizes are looked at: a list of a million messages is large."""
    position = last = 0
    while position < len(plain):
        if len(plain) - position < LOG_OVERHEAD:
            raise CorruptRecords(f"{len(plain) - position} bytes behind the last message")
        last = position
        size = int.from_bytes(plain[position + 8 : position + LOG_OVERHEAD], "big", signed=True)
        if size < 0 or size > len(plain) - position - LOG_OVERHEAD:
            raise CorruptRecords(f"a message of {size} bytes at byte {position} of {len(plain)}")
        position += LOG_OVERHEAD + size
    return int.from_bytes(plain[last : last + 8], "big", signed=True)


def _check_inner(message: LegacyEntry, wrapper: LegacyEntry) -> None:
    if message.magic != wrapper.magic:
        raise CorruptRecords(f"a message of magic {message.magic} inside one of magic {wrapper.magic}")
    if message.codec != Codec.NONE:
        raise CorruptRecords(f"a compressed message inside the one at offset {wrapper.offset}")


def _offset_of_relative_zero(wrapper: LegacyEntry, last_inner: int) -> int:
    # Some producers leave the wrapper's offset 0 instead of setting it to the last inner one; nothing before
    # 0 can be meant then.
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    return wrapper.offset - last_inner


def _record(entry: LegacyEntry, offset: int, timestamp_ms: int) -> Record:
    key = None if entry.key is None else bytes(entry.key)
    value = None if entry.value is None else bytes(entry.value)
    return Record(offset, timestamp_ms, key, value)


def encode_entry(
    record: LegacyRecord,
    magic: int,
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> bytes:
    """One entry with its checksum. `codec` only sets the attribute: the value must be compressed already."""
    offset, timestamp_ms, key, value = record
    attributes = int(codec) | (_LOG_APPEND_TIME if magic == 1 and timestamp_type else 0)
    body = b"".join(
        (
            struct.pack(">BB", magic, attributes),
            struct.pack(">q", timestamp_ms) if magic == 1 else b"",
            *_sized(key),
            *_sized(value),
        )
    )
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def _sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (_LENGTH.pack(-1), b"") if data is None else (_LENGTH.pack(len(data)), data)


def encode_set(
    records: Iterable[LegacyRecord],
    magic: int,
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    max_bytes: int = _NO_LIMIT,
) -> bytes:
    """A message set: plain entries, or one wrapper around all of them when there is a codec.

    Under LOG_APPEND_TIME the wrapper's time is the largest of the records'. The records are taken one by one;
    raises MessageTooLarge when their entries together have more than `max_bytes`, before compression.
    """
    messages = iter(records)
    entries = bytearray()
    first, last, newest = None, 0, -1
    for message in messages:
        last, newest = message.offset, max(newest, message.timestamp_ms)
        if first is None:
            first = 0 if magic == 0 or codec == Codec.NONE else message.offset
        entries += encode_entry(
            message._replace(offset=message.offset - first), magic, timestamp_type=timestamp_type
        )
        if len(entries) > max_bytes:
            raise MessageTooLarge(f"messages of magic {magic} take more than {max_bytes} bytes")
    if codec == Codec.NONE or first is None:
        return bytes(entries)
    wrapper = LegacyRecord(last, newest, None, compress(codec, entries, magic=magic))
    return encode_entry(wrapper, magic, codec=codec, timestamp_type=timestamp_type)
