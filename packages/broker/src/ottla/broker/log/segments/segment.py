"""One segment: a log file with its indexes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ottla.broker.log.files.file_system import File, Files
from ottla.broker.log.segments.index import OffsetIndex, TimeIndex, TransactionIndex
from ottla.broker.log.segments.index_building import rebuild_indexes
from ottla.broker.log.segments.offset_lookup import find_entry
from ottla.broker.log.segments.scan import Located, check_entries, walk
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.segments import DELETED_SUFFIX, SegmentFile, file_name

MAX_RELATIVE_OFFSET: Final = 2**31 - 1
UNKNOWN: Final = -2
_SEARCHED_WITHOUT_INDEX_BYTES: Final = 4096


class Segment:
    """A log file named by its base offset, with offset, time and transaction index.

    Files are opened when they are needed; a sealed segment without readers costs a few hundred bytes. The
    newest segment of a log is active: the log's end keeps `size` and the timestamps and writes them here.
    """

    __slots__ = (
        "_file",
        "_first_timestamp",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offsets",
        "_pinned_modified_ms",
        "_suffix",
        "_times",
        "active",
        "base_offset",
        "directory",
        "files",
        "indexes_lost",
        "size",
        "transactions",
    )

    def __init__(
        self, files: Files, directory: Path, base_offset: int, size: int = 0, *, suffix: str = ""
    ) -> None:
        self.files = files
        self.directory = directory
        self._suffix = suffix
        self._pinned_modified_ms: int | None = None
        self.base_offset = base_offset
        self.size = size
        self.active = False
        self.indexes_lost = False
        """Whether it was sealed with indexes that another program had cut."""
        self._file: File | None = None
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self.transactions = TransactionIndex(files, self.path(SegmentFile.TRANSACTION_INDEX))
        self._max_timestamp = UNKNOWN
        self._max_timestamp_offset = base_offset
        self._first_timestamp = UNKNOWN

    @classmethod
    def placeholder(cls, segment: Segment) -> Segment:
        """An empty segment that stands in the list while a thread changes `segment`; it opens no file."""
        empty = cls(segment.files, segment.directory, segment.base_offset)
        empty._file = segment.file
        empty._offsets = OffsetIndex(
            segment.files, segment.path(SegmentFile.OFFSET_INDEX), segment.base_offset
        )
        empty._times = TimeIndex(segment.files, segment.path(SegmentFile.TIME_INDEX), segment.base_offset)
        empty._max_timestamp = empty._first_timestamp = -1
        empty.transactions.assume_empty()
        empty.active = True
        return empty

    def copy(self) -> Segment:
        """Another object for the same files, with none of them open: for a thread."""
        return Segment(self.files, self.directory, self.base_offset, self.size)

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.size} bytes)"

    def moved_to(self, directory: Path) -> None:
        """Follow the rename of the directory."""
        self.directory = directory
        for index in (self._offsets, self._times, self.transactions):
            if index is not None:
                index.path = directory / index.path.name

    def path(self, kind: SegmentFile, suffix: str | None = None) -> Path:
        """The path of one of its files, with its own suffix or another one."""
        return self.directory / file_name(self.base_offset, kind, self._suffix if suffix is None else suffix)

    # ---- files

    @property
    def file(self) -> File:
        """The log file."""
        if self._file is None:
            self._file = self.files.open(self.path(SegmentFile.LOG))
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether its log file or an index is open."""
        return self._file is not None or self._offsets is not None or self._times is not None

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index; rebuilt if it is damaged."""
        if self._offsets is None:
            index = OffsetIndex(self.files, self.path(SegmentFile.OFFSET_INDEX), self.base_offset)
            try:
                index.open_for_reading()
                index.check(self.size)
            except (CorruptStorage, FileNotFoundError):
                index.close()
                self._rebuild()
                return self.offsets
            self._offsets = index
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index; rebuilt if it is damaged."""
        if self._times is None:
            index = TimeIndex(self.files, self.path(SegmentFile.TIME_INDEX), self.base_offset)
            try:
                index.open_for_reading()
                index.check()
            except (CorruptStorage, FileNotFoundError):
                index.close()
                self._rebuild()
                return self.times
            self._times = index
        return self._times

    def _rebuild(self) -> None:
        self.close()
        rebuild_indexes(self)

    def create(self, *, preallocate_bytes: int = 0) -> None:
        """Create an empty log file."""
        self._file = self.files.open(self.path(SegmentFile.LOG), create=True)
        self._file.truncate(0)
        self.size = 0
        if preallocate_bytes:
            self._file.reserve(0, preallocate_bytes)

    def activate(self, max_index_bytes: int, *, keep: bool) -> None:
        """Open the indexes for writing, with their entries if `keep`."""
        self.close_indexes()
        self._offsets = OffsetIndex(self.files, self.path(SegmentFile.OFFSET_INDEX), self.base_offset)
        self._times = TimeIndex(self.files, self.path(SegmentFile.TIME_INDEX), self.base_offset)
        try:
            self._offsets.open_for_writing(max_index_bytes, keep=keep)
            self._times.open_for_writing(max_index_bytes, keep=keep)
        except BaseException:
            self.close_indexes()
            raise
        self.active = True

    def seal(self) -> None:
        """Shorten the files to their content: nothing more will be written."""
        if not self.active:
            return
        self.active = False
        self.indexes_lost = self.has_lost_index
        with suppress(OSError):  # on a full disk, a search by time begins a little earlier
            self.times.maybe_append(self.max_timestamp, self.max_timestamp_offset, last_one=True)
        self.offsets.trim()
        self.times.trim()
        if self.file.size() != self.size:  # it was preallocated
            self.file.truncate(self.size)

    @property
    def has_lost_index(self) -> bool:
        """Whether another program has cut an index: it has to be rebuilt (`lost_indexes`)."""
        opened = (self._offsets, self._times)
        return self.indexes_lost or any(index is not None and index.is_lost for index in opened)

    def rebuild_lost(self) -> None:
        """Rebuild the indexes of a sealed segment. Blocks; reads use the rest of them meanwhile."""
        rebuild_indexes(self.copy())

    def close_indexes(self) -> None:
        """Close the indexes."""
        for index in (self._offsets, self._times):
            if index is not None:
                index.close()
        self._offsets = self._times = None
        self.transactions.close()
        self.active = False

    def close(self) -> None:
        """Close all files; a reader keeps the one it reads open."""
        self.close_indexes()
        self._file = None

    def to_sync(self, *, indexes: bool | None = None) -> list[File]:
        """The written files that a flush has to sync; the indexes only once the segment is sealed."""
        log = self._file or self.files.open(self.path(SegmentFile.LOG))
        found: list[File | None] = [log, self.transactions.file]
        if not self.active if indexes is None else indexes:
            found += [self.offsets.file, self.times.file]
        return [file for file in found if file is not None]

    def opened(self, kind: SegmentFile) -> File | None:
        """One of its files, opened to be synced on any thread; None where there is none.

        A log file that is open already is preferred: an error of its pages may be reported there only.
        """
        if kind is SegmentFile.LOG and (file := self._file) is not None:
            return file
        try:
            return self.files.open(self.path(kind))
        except FileNotFoundError:
            return None

    @property
    def is_pinned(self) -> bool:
        """Whether its files stay open under any name."""
        return self._pinned_modified_ms is not None

    def pin(self) -> None:
        """Open its files and keep them open: from here on it is read without their names."""
        self._pinned_modified_ms = self.last_modified_ms
        assert self.file is not None
        assert self.offsets is not None
        assert self.times is not None
        assert self.transactions.entries is not None

    def unpin(self) -> None:
        """Use the names of its files again."""
        self._pinned_modified_ms = None

    # ---- times

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in it, -1 if there is none."""
        if self._max_timestamp == UNKNOWN:
            self._load_times()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """The offset of the record with the largest timestamp."""
        if self._max_timestamp == UNKNOWN:
            self._load_times()
        return self._max_timestamp_offset

    def _load_times(self) -> None:
        was_open = self._times is not None
        self._max_timestamp, self._max_timestamp_offset = self.times.last
        if not was_open and self._times is not None:  # retention asks all segments
            self._times.close()
            self._times = None

    def set_max_timestamp(self, timestamp_ms: int, offset: int) -> None:
        """Set the largest timestamp and its offset."""
        self._max_timestamp, self._max_timestamp_offset = timestamp_ms, offset

    @property
    def first_timestamp(self) -> int:
        """The timestamp that its age counts from: the largest of the first batch; -1 if there is none."""
        if self._first_timestamp == UNKNOWN:
            self._first_timestamp = self._read_first_timestamp()
        return self._first_timestamp

    def set_first_timestamp(self, timestamp_ms: int) -> None:
        """Set the timestamp that its age counts from."""
        self._first_timestamp = timestamp_ms

    def _read_first_timestamp(self) -> int:
        if not self.size:
            return UNKNOWN
        try:
            return next(check_entries(self.file, 0, self.size)).max_timestamp
        except (CorruptStorage, StopIteration):
            return -1

    @property
    def last_modified_ms(self) -> int:
        """When its log file was last written."""
        if self._pinned_modified_ms is not None:
            return self._pinned_modified_ms
        return self.files.modified_ms(self.path(SegmentFile.LOG))

    @property
    def largest_timestamp(self) -> int:
        """The timestamp for retention: the largest one, or the file's modification time without any."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_modified_ms

    # ---- finding

    def locate(self, offset: int, *, wait: bool = True) -> Located | None:
        """The first entry whose last offset is at or above `offset`. Raises as `search.find_entry`."""
        index = self.offsets if self.size > _SEARCHED_WITHOUT_INDEX_BYTES else None
        return find_entry(self.file, index, self.size, offset, wait=wait)

    def read_end(self) -> int:
        """The offset behind the last entry, found from the newest index entry. Raises CorruptStorage."""
        end, index = self.base_offset, self.offsets
        position = index.lookup(MAX_RELATIVE_OFFSET + self.base_offset).position if index.count else 0
        for entry in walk(self.file, position, self.size):
            end, position = entry.last_offset + 1, entry.position + entry.size
        if position != self.size:
            raise CorruptStorage(f"{self} ends within an entry", position)
        return end

    # ---- deletion

    def mark_deleted(self) -> list[Path]:
        """Rename its files to `.deleted`, which no start loads; returns the paths to unlink later."""
        self.close()
        marked = []
        for kind in SegmentFile:
            source, target = self.path(kind), self.path(kind, DELETED_SUFFIX)
            if self.files.exists(source):
                self.files.rename(source, target)
                marked.append(target)
        return marked
