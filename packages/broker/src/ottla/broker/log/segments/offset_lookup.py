"""Look up an offset in a segment's file, and the end of the last entry within a limit.

The search is native (`_offset_lookup.pyx`) for files with a descriptor. The functions named
`..._by_walking` do the same for files in memory, and the native ones are tested against them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.log.files.file_system import DiskFile
from ottla.broker.log.segments import _offset_lookup
from ottla.broker.log.segments.scan import Located, locate, walk

if TYPE_CHECKING:
    from ottla.broker.log.files.file_system import File
    from ottla.broker.log.segments.index import OffsetIndex

__all__ = ["find_entry", "find_entry_by_walking", "whole_end", "whole_end_by_walking"]


def find_entry(
    file: File, index: OffsetIndex | None, end: int, offset: int, *, wait: bool = True
) -> Located | None:
    """The first entry whose last offset is at or above `offset`; entries end at `end`.

    Searches from the start without an index. Raises CorruptStorage at bytes that are no entry, and, unless
    `wait`, BlockingIOError where the search would have to wait for the disk.
    """
    if type(file) is not DiskFile:
        return find_entry_by_walking(file, index, end, offset)
    if index is None:
        found = _offset_lookup.find_entry(file.fileno(), b"", 0, 0, end, offset, wait)
    else:
        relative = offset - index.base_offset
        found = _offset_lookup.find_entry(
            file.fileno(), index.mapping, index.count, relative, end, offset, wait
        )
    return None if found is None else Located(*found)


def find_entry_by_walking(file: File, index: OffsetIndex | None, end: int, offset: int) -> Located | None:
    """The same, for any file."""
    return locate(file, 0 if index is None else index.lookup(offset).position, end, offset)


def whole_end(
    file: File,
    index: OffsetIndex,
    start: int,
    limit: int,
    stop: int,
    *,
    at_least_one: bool,
    wait: bool = True,
) -> tuple[int, int]:
    """The end of the last entry, from the one at `start` on, that ends at or below `limit`, and the offset
    that follows it; -1 where that is not known.

    The first entry is taken at any size if `at_least_one`. The file's entries end at `stop`. Raises as
    `find_entry`.
    """
    if type(file) is not DiskFile:
        return whole_end_by_walking(file, index, start, limit, stop, at_least_one=at_least_one)
    return _offset_lookup.whole_end(
        file.fileno(), index.mapping, index.count, start, limit, stop, at_least_one, wait
    )


def whole_end_by_walking(
    file: File, index: OffsetIndex, start: int, limit: int, stop: int, *, at_least_one: bool
) -> tuple[int, int]:
    """The same, for any file."""
    end, next_offset = max(start, index.lookup_position(limit).position), -1
    for found in walk(file, end, stop):
        if found.position + found.size > limit and (end > start or not at_least_one):
            return end, found.base_offset
        end, next_offset = found.position + found.size, found.last_offset + 1
        if end > limit:
            break
    return end, next_offset
