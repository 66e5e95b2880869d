"""The indexes of one segment: mapped, sparse, trimmed when the segment is sealed."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ottla.broker.log.files.file_system import File, Files, is_lost, unmap
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.indexes import (
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    TRANSACTION_ENTRY_SIZE,
    AbortedTransaction,
    OffsetEntry,
    TimeEntry,
    decode_aborted_transactions,
    encode_aborted_transaction,
    lookup_offset,
    lookup_timestamp,
    offset_entry_at,
    time_entry_at,
)

_RESERVE_BYTES: Final = 4096
_MAX_RELATIVE: Final = 2**31 - 1


class MappedIndex:
    """A mapped array of entries of equal size, the base of offset and time index.

    Opened for reading, the file is as long as its entries. Opened for writing, it is `max_bytes` long, almost
    all of it a hole, and blocks are reserved before they are written. No descriptor stays open beside the
    mapping: a broker has thousands of indexes. A search in entries that were lost (`is_lost`) gives the
    segment's begin, which is slow but not wrong.
    """

    ENTRY_SIZE: int = 8
    __slots__ = ("_files", "_map", "_reserved", "_writable", "base_offset", "count", "max_entries", "path")

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self.count = 0
        self.max_entries = 0
        self._reserved = 0
        self._writable = False
        self._map: Any = b""

    def open_for_reading(self) -> None:
        """Map the entries. Raises FileNotFoundError, and CorruptStorage for an impossible length."""
        file = self._files.open(self.path)
        size = file.size()
        if size % self.ENTRY_SIZE:
            raise CorruptStorage(f"{self.path.name} has {size} bytes, no multiple of {self.ENTRY_SIZE}")
        self.count = self.max_entries = size // self.ENTRY_SIZE
        self._map = file.map(size, writable=False) if size else b""
        self._loaded()

    def open_for_writing(self, max_bytes: int, *, keep: bool) -> None:
        """Map room for `max_bytes` of entries; existing entries stay if `keep`."""
        self.close()
        file = self._files.open(self.path, create=True)
        self.count = file.size() // self.ENTRY_SIZE if keep else 0
        self.max_entries = max(max_bytes // self.ENTRY_SIZE, self.count + 1, 2)
        if not keep:
            file.truncate(0)
        file.truncate(self.max_entries * self.ENTRY_SIZE)
        self._map = file.map(self.max_entries * self.ENTRY_SIZE, writable=True)
        self._reserved = self.count * self.ENTRY_SIZE
        self._writable = True
        self._loaded()

    def _loaded(self) -> None:
        """Hook: entries were mapped."""

    @property
    def mapping(self) -> Any:
        """The mapped entries with the room for more; valid until the next change."""
        return self._map

    @property
    def full(self) -> bool:
        """Whether no further entry fits."""
        return self.count >= self.max_entries

    @property
    def is_lost(self) -> bool:
        """Whether another program has cut the file under the mapping: entries read as zeros then."""
        return is_lost(self._map)

    def _room(self) -> int:
        """The position of the next entry, on blocks that exist."""
        position = self.count * self.ENTRY_SIZE
        if position + self.ENTRY_SIZE > self._reserved:
            size = min(_RESERVE_BYTES, self.max_entries * self.ENTRY_SIZE - self._reserved)
            self.file.reserve(self._reserved, size)
            self._reserved += size
        return position

    def keep_first(self, count: int) -> None:
        """Drop all entries but the first `count`."""
        self.count = count
        self._loaded()

    def trim(self) -> None:
        """Shorten the file to its entries and map it for reading: no more entries will be added."""
        self.close()
        self.open_for_reading()

    def close(self) -> None:
        """End the mapping; a file that was open for writing is shortened to its entries."""
        if not isinstance(self._map, bytes):
            unmap(self._map)
        self._map = b""
        if self._writable:
            self._writable = False
            with suppress(FileNotFoundError):  # the partition was deleted
                self.file.truncate(self.count * self.ENTRY_SIZE)

    @property
    def file(self) -> File:
        """The file, opened to be synced."""
        return self._files.open(self.path)


_OFFSET = struct.Struct(">ii")


class OffsetIndex(MappedIndex):
    """From offset to file position: entries of (last offset of an append, position where it begins)."""

    ENTRY_SIZE = OFFSET_ENTRY_SIZE
    __slots__ = ("last_offset",)

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        super().__init__(files, path, base_offset)
        self.last_offset = base_offset

    def _loaded(self) -> None:
        self.last_offset = self[self.count - 1].offset if self.count else self.base_offset

    def __getitem__(self, number: int) -> OffsetEntry:
        return offset_entry_at(self._map, number, self.base_offset)

    def append(self, offset: int, position: int) -> None:
        """Add an entry; offsets must rise. Raises OSError when the disk is full."""
        _OFFSET.pack_into(self._map, self._room(), offset - self.base_offset, position)
        self.count += 1
        self.last_offset = offset

    def lookup(self, offset: int) -> OffsetEntry:
        """The last entry at or below `offset`: its batch is at or behind that position."""
        return lookup_offset(self._map, self.count, self.base_offset, offset)

    def lookup_position(self, position: int) -> OffsetEntry:
        """The last entry whose batch begins at or before `position`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if _OFFSET.unpack_from(self._map, middle * 8)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self[low - 1] if low else OffsetEntry(self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        count = self.count
        while count and self[count - 1].offset >= offset:
            count -= 1
        self.keep_first(count)

    def check(self, log_size: int) -> None:
        """Raise CorruptStorage if the last entry is impossible in a log file of this size."""
        if not self.count:
            return
        last = self[self.count - 1]
        previous = self[self.count - 2] if self.count > 1 else OffsetEntry(self.base_offset - 1, -1)
        if last.offset <= previous.offset or not previous.position < last.position < log_size:
            raise CorruptStorage(f"{self.path.name} ends in {last} after {previous}")


_TIME = struct.Struct(">qi")


class TimeIndex(MappedIndex):
    """From time to offset: entries of (largest timestamp so far, the offset that has it)."""

    ENTRY_SIZE = TIME_ENTRY_SIZE
    __slots__ = ("last",)

    def __init__(self, files: Files, path: Path, base_offset: int) -> None:
        super().__init__(files, path, base_offset)
        self.last = TimeEntry(-1, base_offset)

    def _loaded(self) -> None:
        self.last = self[self.count - 1] if self.count else TimeEntry(-1, self.base_offset)

    def __getitem__(self, number: int) -> TimeEntry:
        return time_entry_at(self._map, number, self.base_offset)

    def maybe_append(self, timestamp_ms: int, offset: int, *, last_one: bool = False) -> None:
        """Add an entry if its timestamp is the largest; `last_one` uses the slot reserved for sealing."""
        last = self.last
        if timestamp_ms <= last.timestamp_ms or offset < last.offset:
            return
        if self.count >= self.max_entries - (not last_one):
            return
        _TIME.pack_into(self._map, self._room(), timestamp_ms, offset - self.base_offset)
        self.count += 1
        self.last = TimeEntry(timestamp_ms, offset)

    @property
    def full(self) -> bool:
        """Whether only the slot reserved for sealing is left."""
        return self.count >= self.max_entries - 1

    def lookup(self, timestamp_ms: int) -> TimeEntry:
        """The last entry at or before a time: all records before its offset are at or before that time."""
        return lookup_timestamp(self._map, self.count, self.base_offset, timestamp_ms)

    def truncate_to(self, offset: int) -> None:
        """Drop entries at or above `offset`."""
        count = self.count
        while count and self[count - 1].offset >= offset:
            count -= 1
        self.keep_first(count)

    def check(self) -> None:
        """Raise CorruptStorage if the last entry cannot follow the one before."""
        if self.count > 1:
            last, previous = self[self.count - 1], self[self.count - 2]
            if last.timestamp_ms <= previous.timestamp_ms or last.offset < previous.offset:
                raise CorruptStorage(f"{self.path.name} ends in {last} after {previous}")


class TransactionIndex:
    """The aborted transactions of one segment. Without any, there is no file."""

    __slots__ = ("_entries", "_file", "_files", "path")

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self.path = path
        self._file: File | None = None
        self._entries: list[AbortedTransaction] | None = None

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All aborted transactions, in the order of their markers. Raises CorruptStorage."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def _read(self) -> list[AbortedTransaction]:
        try:
            return list(decode_aborted_transactions(self._files.read(self.path)))
        except FileNotFoundError:
            return []

    def create(self) -> None:
        """Create an empty file. Raises OSError."""
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(0)
        self._entries = []

    def assume_empty(self) -> None:
        """Begin without entries, and without a look at the disk."""
        self._entries = []

    def append(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction. Raises OSError when the disk is full."""
        entries = self.entries
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        self._file.pwrite(encode_aborted_transaction(entry), len(entries) * TRANSACTION_ENTRY_SIZE)
        entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        """Drop transactions whose marker is at or above `offset`."""
        kept = [transaction for transaction in self.entries if transaction.last_offset < offset]
        self._keep(kept)

    def reset(self) -> None:
        """Drop all entries, also those that cannot be read."""
        if self._files.exists(self.path):
            self._keep([])
        self._entries = []

    def _keep(self, kept: list[AbortedTransaction]) -> None:
        if self._entries is not None and len(kept) == len(self._entries):
            return
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(len(kept) * TRANSACTION_ENTRY_SIZE)
        self._entries = kept

    @property
    def file(self) -> File | None:
        """The file, opened to be synced, if there is one.

        Another object may have written it: recovery and truncation work on copies of a segment.
        """
        if self._file is None and self._files.exists(self.path):
            self._file = self._files.open(self.path)
        return self._file

    def close(self) -> None:
        """Close the file."""
        self._file = None
