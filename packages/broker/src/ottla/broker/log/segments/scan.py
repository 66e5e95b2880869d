"""Scan a segment's file entry by entry: find an entry by its offset, check all entries."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ottla.broker.log.files.file_system import File
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import BatchHeader, legacy, magic_at, read_header, validate_batch
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import iter_stored

_HEAD = struct.Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_HEADER_BYTES = 61
_LOOK_BYTES = 4096
_OVERHEAD = 12


class Located(NamedTuple):
    """An entry's position and offsets. Before magic 2 only the last offset is known."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def locate(file: File, position: int, end: int, offset: int) -> Located | None:
    """The first entry between two positions whose last offset is at or above `offset`.

    Reads headers only. Raises CorruptStorage at bytes that are no entry.
    """
    for found in walk(file, position, end):
        if found.last_offset >= offset:
            return found
    return None


def walk(file: File, position: int, end: int) -> Iterator[Located]:
    """Every entry between two positions, by its header."""
    while position < end:
        chunk = file.pread(min(_LOOK_BYTES, end - position), position)
        at, limit = 0, len(chunk) - _HEAD.size
        if limit < 0:
            return
        while at <= limit:
            base_offset, length, _, magic, _, _, delta = _HEAD.unpack_from(chunk, at)
            if length < 14 or magic > 2:
                raise CorruptStorage(f"no entry at byte {position + at} of {file.path.name}", position + at)
            last_offset = base_offset + delta if magic == 2 else base_offset
            yield Located(position + at, length + _OVERHEAD, base_offset, last_offset)
            at += length + _OVERHEAD
        position += at


class Checked(NamedTuple):
    """A complete entry with a correct checksum. `header` is None before magic 2."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    header: BatchHeader | None
    data: memoryview


def check_entries(file: File, start: int, end: int) -> Iterator[Checked]:
    """Every entry of any magic between two positions, checksums verified.

    Raises CorruptStorage, with the position, at the first bytes that are no intact entry.
    """
    for position, data in iter_stored(lambda at, size: file.pread(size, at), start, end):
        try:
            entry = describe(position, data)
        except KafkaError as error:
            raise CorruptStorage(str(error), position) from None
        yield entry


def describe(position: int, data: memoryview, *, verify: bool = True) -> Checked:
    """Return an entry's offsets and times; with `verify` its checksum has to be right.

    Raises `KafkaError` for damaged data.
    """
    if magic_at(data) == 2:
        header = validate_batch(data) if verify else read_header(data)
        return Checked(
            position,
            len(data),
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            header,
            data,
        )
    entry = legacy.read_entry(data, check_crc=verify)
    return Checked(position, len(data), entry.offset, entry.offset, entry.timestamp_ms, None, data)


def headers_from(file: File, start: int, end: int) -> Iterator[tuple[BatchHeader, int, int]]:
    """The v2 headers between two positions, each with its position and size; older formats are skipped."""
    position = start
    while end - position >= _HEADER_BYTES:
        chunk = memoryview(file.pread(min(_LOOK_BYTES, end - position), position))
        at, limit = 0, len(chunk) - _HEADER_BYTES
        if limit < 0:
            return
        while at <= limit:
            _, length, _, magic, *_ = _HEAD.unpack_from(chunk, at)
            if length < 14 or magic > 2:
                raise CorruptStorage(f"no entry at byte {position + at} of {file.path.name}", position + at)
            size = length + _OVERHEAD
            if magic == 2:
                yield read_header(chunk[at : at + _HEADER_BYTES]), position + at, size
            at += size
        position += at
