"""Building the offset and time index of a segment from its entries."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.log.files.file_system import File, Files
from ottla.broker.log.segments.index import OffsetIndex, TimeIndex
from ottla.broker.log.segments.scan import Checked, check_entries
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import SegmentFile

if TYPE_CHECKING:
    from ottla.broker.log.compaction.offset_map import PlainCopy

_DEFAULT_INDEX_BYTES: Final = 10 * 1024 * 1024


class Indexed(Protocol):
    """The parts of a segment that its indexes are built from."""

    files: Files
    base_offset: int
    size: int

    @property
    def file(self) -> File: ...

    def path(self, kind: SegmentFile) -> Path: ...

    def set_max_timestamp(self, timestamp_ms: int, offset: int) -> None: ...

    def set_first_timestamp(self, timestamp_ms: int) -> None: ...


class IndexBuilder:
    """Rebuilds the offset and time index of one segment.

    The transaction index is kept: its entries depend on the segments before.
    """

    def __init__(self, segment: Indexed, interval_bytes: int, max_bytes: int) -> None:
        self._segment = segment
        self._interval = interval_bytes
        self._indexed = 0
        self._largest = (-1, segment.base_offset)
        self._offsets = OffsetIndex(
            segment.files, segment.path(SegmentFile.OFFSET_INDEX), segment.base_offset
        )
        self._times = TimeIndex(segment.files, segment.path(SegmentFile.TIME_INDEX), segment.base_offset)
        room = max(max_bytes, segment.size // max(1, interval_bytes) * 12 + 64)
        self._offsets.open_for_writing(room, keep=False)
        self._times.open_for_writing(room, keep=False)
        self._first = -1

    def add(self, entry: Checked) -> None:
        """Index the next entry of the segment."""
        if not entry.position:
            self._first = entry.max_timestamp
        if entry.max_timestamp > self._largest[0]:
            self._largest = entry.max_timestamp, entry.last_offset
        if entry.position - self._indexed > self._interval:
            self._offsets.append(entry.last_offset, entry.position)
            self._times.maybe_append(*self._largest)
            self._indexed = entry.position

    def begin_copy(self, copy: PlainCopy, position: int) -> None:
        """Copy batches from a position of the segment on."""
        copy.interval, copy.indexed, copy.position = self._interval, self._indexed, position
        copy.first = self._first
        copy.largest, copy.largest_at = self._largest

    def end_copy(self, copy: PlainCopy, entries: list[tuple[int, int, int, int]]) -> None:
        """Add the index entries of batches that were copied."""
        for position, last_offset, largest, largest_at in entries:
            self._offsets.append(last_offset, position)
            self._times.maybe_append(largest, largest_at)
        self._indexed, self._first = copy.indexed, copy.first
        self._largest = copy.largest, copy.largest_at

    def finish(self) -> None:
        """Complete and close the indexes."""
        self._times.maybe_append(*self._largest, last_one=True)
        self._offsets.close()
        self._times.close()
        self._segment.set_max_timestamp(*self._largest)
        if self._first >= 0:
            self._segment.set_first_timestamp(self._first)


def rebuild_indexes(segment: Indexed, interval_bytes: int = 4096) -> None:
    """Rebuild the offset and time index of a sealed segment, as far as its entries are intact."""
    building = IndexBuilder(segment, interval_bytes, _DEFAULT_INDEX_BYTES)
    with suppress(CorruptStorage):
        for entry in check_entries(segment.file, 0, segment.size):
            building.add(entry)
    building.finish()
