"""A segment that a cleaning writes, with the suffix `.cleaned` until it takes the place of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.log.segments.index_building import IndexBuilder
from ottla.broker.log.segments.scan import describe
from ottla.broker.log.segments.segment import Segment
from ottla.protocol.records import Buffer
from ottla.protocol.storage.segments import CLEANED_SUFFIX, SegmentFile

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.compaction.offset_map import PlainCopy
    from ottla.broker.log.log import Log
    from ottla.protocol.storage.indexes import AbortedTransaction

_SMALLEST_BATCH: Final = 61
_INDEX_ENTRY_BYTES: Final = 12
_SMALL_PARTS: Final = 4
"""Data of less than this part of a write waits for more."""


class CleanedSegment:
    """One cleaned segment, made and written on a thread: making its files takes half a millisecond.

    `old` are copies of the segments that it replaces; `written` is called with the number of bytes
    before each write.
    """

    def __init__(self, log: Log, old: list[Segment], io_bytes: int, written: Callable[[int], None]) -> None:
        self.segment = Segment(log.files, log.directory, old[0].base_offset, suffix=CLEANED_SUFFIX)
        self.modified_ms = 0
        self.is_changed = False
        """Whether anything of the old segments is left out."""
        self._io_bytes = io_bytes
        self._written = written
        self._buffer = bytearray()
        self._copied = bytearray()
        self._size = 0
        self._paths = [self.segment.path(kind) for kind in _KINDS]
        self._old, self._config = old, log.config
        self.end_offset = -1
        """The offset behind the last entry, once the segment is finished."""

    def create(self) -> None:
        """Make the files. Raises OSError."""
        self.segment.create()
        self._indexes = _indexes(self.segment, self._config, sum(segment.size for segment in self._old))
        if any(segment.transactions.entries for segment in self._old):
            self.segment.transactions.create()

    def add(self, entry: Buffer) -> None:
        """Add an entry of any format."""
        self._indexes.add(describe(self._size, memoryview(entry), verify=False))
        self._append(entry)

    def add_plain(self, copy: PlainCopy, entries: memoryview, *, spares_last: bool) -> int:
        """Add the kept ones of plain batches (see `PlainCopy`); returns the size of those that were taken."""
        if len(self._copied) < len(entries):
            self._copied = bytearray(len(entries))
        self._indexes.begin_copy(copy, self._size)
        taken, size, index_entries = copy.copy(entries, self._copied, spares_last=spares_last)
        self._indexes.end_copy(copy, index_entries)
        self.is_changed = self.is_changed or copy.is_changed
        if size:
            self._append(memoryview(self._copied)[:size])
        return taken

    def _append(self, data: Buffer) -> None:
        if len(data) * _SMALL_PARTS < self._io_bytes:
            self._buffer += data
            self._size += len(data)
            if len(self._buffer) >= self._io_bytes:
                self._write()
            return
        self._write()
        self._written(len(data))
        self.segment.file.pwrite(data, self._size)
        self._size += len(data)

    def _write(self) -> None:
        if self._buffer:
            self._written(len(self._buffer))
            self.segment.file.pwrite(self._buffer, self._size - len(self._buffer))
            self._buffer.clear()

    def finish(self, aborted: list[AbortedTransaction]) -> None:
        """Write the rest and complete the indexes; the replacement brings them to the disk. Blocks."""
        self._write()
        self.segment.size = self._size
        self._indexes.finish()
        for transaction in aborted:
            self.segment.transactions.append(transaction)
        self.segment.files.set_modified_ms(self.segment.path(SegmentFile.LOG), self.modified_ms)
        self.end_offset = self.segment.read_end()
        self.segment.close()
        if not aborted:
            self.segment.files.unlink(self.segment.path(SegmentFile.TRANSACTION_INDEX))

    def discard(self) -> None:
        """Remove the files: nothing takes the place of the old segments. Raises OSError."""
        self.segment.close()
        for path in self._paths:
            self.segment.files.unlink(path)


_KINDS: Final = (
    SegmentFile.LOG,
    SegmentFile.OFFSET_INDEX,
    SegmentFile.TIME_INDEX,
    SegmentFile.TRANSACTION_INDEX,
)


def _indexes(segment: Segment, config: LogConfig, old_bytes: int) -> IndexBuilder:
    entries = old_bytes // max(config.index_interval_bytes, _SMALLEST_BATCH) + 2
    room = max(config.segment_index_bytes, entries * _INDEX_ENTRY_BYTES)
    return IndexBuilder(segment, config.index_interval_bytes, room)
