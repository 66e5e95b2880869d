"""The first record at or after a time: the batches to look into, and the look, on a thread if it is long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.log.append.batch_validation import MAX_OPENED_BYTES
from ottla.broker.log.segments.scan import check_entries
from ottla.protocol.errors import MessageTooLarge
from ottla.protocol.records import iter_records

if TYPE_CHECKING:
    from ottla.broker.log.segments.scan import Checked
    from ottla.broker.log.segments.segment import Segment
    from ottla.broker.log.state.log_state import LogState
    from ottla.protocol.records import BatchHeader

_LONG_BYTES: Final = 64 << 10
_PASSED_AT_ONCE: Final = 256
"""Batches that are too old, passed between two steps: half a millisecond."""


class TimestampOffset(NamedTuple):
    """A record's timestamp and offset."""

    timestamp: int
    offset: int


class Candidate(NamedTuple):
    """A batch that may hold the record."""

    data: memoryview
    header: BatchHeader | None
    """None for a message of an older format."""
    base_offset: int
    timestamp_ms: int
    start_offset: int
    """The log's: records before it are deleted."""

    @property
    def is_long(self) -> bool:
        """Whether the look may take more than a few milliseconds: a small batch may be large when opened."""
        return len(self.data) > _LONG_BYTES or self.header is None or bool(self.header.codec)

    def look(self) -> TimestampOffset | None:
        """Return the first record at or after the time, if the batch has one. May block: see `is_long`."""
        try:
            for record in iter_records(self.data, max_decompressed_bytes=MAX_OPENED_BYTES):
                if record.timestamp_ms >= self.timestamp_ms and record.offset >= self.start_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset)
        except MessageTooLarge:  # one batch must not fail all searches: none of its records is earlier
            return TimestampOffset(self.timestamp_ms, max(self.base_offset, self.start_offset))
        return None


Search = Generator["Candidate | None", "TimestampOffset | None", "TimestampOffset | None"]
"""Yields candidates, takes the result of each look, and returns the last one.

Where batches are too old it yields None now and then, so that others have their turn: the index by time knows
nothing about those behind the batch of a producer whose clock was ahead, which may be a whole segment.
"""

_SearchOfSegment = Generator[
    "Candidate | None", "TimestampOffset | None", "tuple[TimestampOffset | None, int]"
]
"""As `Search`; returns also the offset to go on at."""


def search(log: LogState, timestamp_ms: int) -> Search:
    """Search a log, segment after segment. Other work may go on between two candidates.

    In between, the cleaner may exchange segments, retention may drop some, and a truncation may replace the
    last: their files may be others then, or none. So a segment is looked up by an offset, and left where it
    is not the log's any more; the search goes on at the next offset. Records that are appended meanwhile need
    not be found.
    """
    offset, end = log.log_start_offset, log.log_end.next_offset
    while offset < min(end, log.log_end.next_offset):
        found, offset = yield from _in_segment(log, log.segments.find(offset), timestamp_ms, offset)
        if found is not None:
            return found
    return None


def newest(log: LogState) -> int:
    """Return the latest timestamp of all batches; -1 where no batch has one."""
    return max(
        (log.log_end if segment is log.log_end.segment else segment).max_timestamp
        for segment in log.segments.all
    )


def _in_segment(log: LogState, segment: Segment, timestamp_ms: int, offset: int) -> _SearchOfSegment:
    """Search a segment of the log from an offset on."""
    passed = 0
    for entry in _entries(log, segment, timestamp_ms, offset):
        is_old = entry.max_timestamp < timestamp_ms or entry.last_offset < log.log_start_offset
        passed += is_old
        if is_old and passed % _PASSED_AT_ONCE:
            continue
        found = yield None if is_old else _candidate(log, entry, timestamp_ms)
        if found is not None or log.segments.find(segment.base_offset) is not segment:
            return found, entry.last_offset + 1
    return None, end_of(log, segment)


def _entries(log: LogState, segment: Segment, timestamp_ms: int, offset: int) -> Iterator[Checked]:
    """The entries of a segment from an offset on, from the first one that may be new enough."""
    newest = log.log_end if segment is log.log_end.segment else segment
    if newest.max_timestamp < timestamp_ms:
        return
    log.segments.opening(segment)
    near = segment.times.lookup(timestamp_ms)
    start = segment.offsets.lookup(max(near.offset, offset, segment.base_offset)).position
    for entry in check_entries(segment.file, start, segment.size):
        if entry.last_offset >= offset:
            yield entry


def _candidate(log: LogState, entry: Checked, timestamp_ms: int) -> Candidate:
    return Candidate(entry.data, entry.header, entry.base_offset, timestamp_ms, log.log_start_offset)


def end_of(log: LogState, segment: Segment) -> int:
    """Return the offset where the segment behind one begins, or the log ends."""
    bases = log.segments.bases
    number = bisect_right(bases, segment.base_offset)
    return bases[number] if number < len(bases) else log.log_end.next_offset


def at_once(steps: Search) -> TimestampOffset | None:
    """Look into every candidate here."""
    found: TimestampOffset | None = None
    try:
        candidate = next(steps)
        while True:
            candidate = steps.send(None if candidate is None else candidate.look())
    except StopIteration as end:
        found = end.value
    return found
