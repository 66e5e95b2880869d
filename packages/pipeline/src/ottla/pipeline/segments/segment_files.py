"""The files of a segment: entries one by one, and positions found through the indexes.

An index is only a hint: after a crash it may be missing or wrong. So a position from an index counts only if
a whole batch with a valid checksum begins there; otherwise the log itself is scanned.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from ottla.pipeline.errors import CorruptSegment, SegmentsChanged
from ottla.pipeline.lazy import pa, pc
from ottla.pipeline.segments.log_directories import Segment
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    CorruptRecords,
    magic_at,
    read_header,
    validate_batch,
)
from ottla.protocol.records.arrow import ColumnBuilder
from ottla.protocol.records.legacy import read_entry
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.indexes import (
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    OffsetEntry,
    lookup_offset,
    lookup_timestamp,
    offset_entry_at,
)
from ottla.protocol.storage.segments import SegmentFile

_OVERHEAD = 12
_LEAST_ENTRY = 26
_NEWEST_MAGIC = 2


class Entry(NamedTuple):
    """A batch, or a message of format 0 or 1, which has no `header`."""

    position: int
    size: int
    header: BatchHeader | None


class SegmentReader:
    """A segment that is open for reading. Use it as a context manager."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._file = segment.path().open("rb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read_at(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes; fewer only at the end of the file."""
        self._file.seek(position)
        return self._file.read(size)

    def entries(self, start: int = 0) -> Iterator[Entry]:
        """Yield the entries from a position on, reading only their headers.

        Raises CorruptStorage with the position of the first invalid or truncated entry.
        """
        position, end = start, self.segment.size
        while position < end:
            entry = _entry(self.read_at(position, min(BATCH_HEADER_SIZE, end - position)), position)
            if entry.size > end - position:
                raise CorruptStorage(f"the entry at byte {position} is truncated at byte {end}", position)
            yield entry
            position += entry.size

    def bytes_of(self, entry: Entry) -> bytes:
        """Return all bytes of an entry."""
        return self.read_at(entry.position, entry.size)

    # --- positions

    def position_of(self, offset: int) -> int:
        """Return the nearest known position from which every record at or above an offset is found."""
        index = _index(self.segment, SegmentFile.OFFSET_INDEX)
        count = _filled(index, OFFSET_ENTRY_SIZE)
        found = lookup_offset(index, count, self.segment.base_offset, offset)
        return found.position if self.is_batch(found) else 0

    def position_behind(self, offset: int) -> int:
        """Return the nearest known position behind every record below an offset."""
        index = OffsetIndex(self.segment)
        # An index entry describes an append, which may hold several batches, so the end is at the next entry.
        number = index.first_from(offset - 1) + 1
        if number < len(index) and self.is_batch(index[number]):
            return index[number].position
        return self.segment.size

    def boundaries(self, wanted: list[int]) -> list[int]:
        """Return positions at which batches begin, near the wanted ones, in order; there may be fewer."""
        index = OffsetIndex(self.segment)
        if not len(index):
            return _near(wanted, (entry.position for entry in self.entries()))
        found = (index.at_position(position) for position in wanted)
        whole = {position.position for position in found if position is not None and self.is_batch(position)}
        return sorted(whole)

    def is_batch(self, place: OffsetEntry) -> bool:
        """Whether a whole batch that matches the index begins at the indexed position."""
        if place.position == 0:
            return True
        try:
            header = read_header(self.read_at(place.position, BATCH_HEADER_SIZE))
            validate_batch(self.read_at(place.position, header.size_in_bytes))
        except KafkaError:
            return False
        return self.segment.base_offset <= header.base_offset <= place.offset

    # --- timestamps

    def first_at(self, time_ms: int, since_offset: int) -> int | None:
        """Return the first offset at or above an offset whose timestamp is at or after a time in ms."""
        for entry in self.entries(self.position_of(max(since_offset, self._before(time_ms)))):
            header = entry.header
            if header is not None and (header.max_timestamp < time_ms or header.last_offset < since_offset):
                continue
            found = _first_at(self.bytes_of(entry), time_ms, since_offset)
            if found is not None:
                return found
        return None

    def _before(self, time_ms: int) -> int:
        """Return an offset before which every record has an earlier timestamp."""
        times = _index(self.segment, SegmentFile.TIME_INDEX)
        count = _filled(times, TIME_ENTRY_SIZE)
        # Records up to the indexed one have at most the indexed timestamp, so that timestamp has to be
        # earlier.
        return lookup_timestamp(times, count, self.segment.base_offset, time_ms - 1).offset


@contextmanager
def open_segment(segment: Segment) -> Iterator[SegmentReader]:
    """Open a segment. Raises CorruptSegment for invalid content, SegmentsChanged if the file is gone."""
    try:
        with SegmentReader(segment) as reader:
            yield reader
    except (CorruptStorage, KafkaError) as error:
        raise CorruptSegment(str(segment.path()), error) from error
    except FileNotFoundError:
        raise SegmentsChanged(f"{segment.path()} was deleted while the query was planned") from None


class OffsetIndex:
    """The entries of a segment's offset index."""

    def __init__(self, segment: Segment) -> None:
        self._base = segment.base_offset
        self._data = _index(segment, SegmentFile.OFFSET_INDEX)
        self._count = _filled(self._data, OFFSET_ENTRY_SIZE)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> OffsetEntry:
        return offset_entry_at(self._data, number, self._base)

    def first_from(self, offset: int) -> int:
        """Return the number of the first entry at or above an offset."""
        return bisect_left(range(self._count), offset, key=lambda number: self[number].offset)

    def at_position(self, position: int) -> OffsetEntry | None:
        """Return the first entry at or behind a position of the log."""
        number = bisect_left(range(self._count), position, key=lambda number: self[number].position)
        return self[number] if number < self._count else None


def _entry(head: bytes, position: int) -> Entry:
    try:
        magic = magic_at(head)
        if magic == _NEWEST_MAGIC:
            header = read_header(head)
            return Entry(position, header.size_in_bytes, header)
    except CorruptRecords as error:
        raise CorruptStorage(f"{error} (byte {position})", position) from None
    size = int.from_bytes(head[8:_OVERHEAD], "big", signed=True) + _OVERHEAD
    if magic > _NEWEST_MAGIC or size < _LEAST_ENTRY:
        raise CorruptStorage(f"there is no entry of a log at byte {position}", position)
    return Entry(position, size, None)


def _first_at(entry: bytes, time_ms: int, since_offset: int) -> int | None:
    """Return the offset of an entry's first record that is late enough; control records do not count."""
    builder = ColumnBuilder(("offset", "timestamp"))
    following = builder.add("", 0, entry, since_offset)
    rows = pa.record_batch(builder.finish())
    late = rows.filter(pc.greater_equal(rows.column("timestamp").cast(pa.int64()), time_ms))
    if late.num_rows:
        return int(late.column("offset")[0].as_py())
    builder.add("", 0, entry, following)  # raises if a malformed record ended the first reading
    return None


def _index(segment: Segment, kind: SegmentFile) -> bytes:
    path = segment.path(kind)
    return path.read_bytes() if path.exists() else b""


def _filled(index: bytes, size: int) -> int:
    """Count the entries of an index; the file of an active segment is longer and filled with zeros."""
    last_field = slice(4, 8) if size == OFFSET_ENTRY_SIZE else slice(0, 8)

    def is_blank(number: int) -> bool:
        entry = index[number * size : (number + 1) * size]
        return number > 0 and not any(entry[last_field])

    count = len(index) // size
    found = bisect_left(range(count), True, key=is_blank)
    return 0 if found == 1 and not any(index[:size]) else found


def _near(wanted: list[int], positions: Iterator[int]) -> list[int]:
    """Return for each wanted position the first one at or behind it."""
    found: list[int] = []
    waiting = sorted(wanted)
    for position in positions:
        if waiting and position >= waiting[0]:
            found.append(position)
            waiting = [wanted_position for wanted_position in waiting if wanted_position > position]
    return found


def snapshot_of_active(segment: Segment) -> Segment:
    """Return an active segment in its current state: up to its last whole batch, and not growing."""
    with SegmentReader(segment) as reader:
        size = start = reader.position_of(2**62)
        following = segment.base_offset
        try:
            for entry in reader.entries(start):
                following = _behind(reader.bytes_of(entry))
                size = entry.position + entry.size
        except (CorruptStorage, KafkaError):
            pass  # being written, torn by a crash, or preallocated space
    return Segment(segment.folder, segment.base_offset, following, size, grows=True)


def _behind(entry: bytes) -> int:
    """Return the offset behind a whole entry. Raises CorruptRecords for a wrong checksum."""
    if magic_at(entry) == _NEWEST_MAGIC:
        return validate_batch(entry).next_offset
    return read_entry(entry).offset + 1
