"""The first record at or after a time: the batches to look into, and the look, on a thread if it is long."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.log.batch_validation import MAX_OPENED_BYTES
from ottla.broker.log.segment_scan import check_entries
from ottla.protocol.errors import MessageTooLarge
from ottla.protocol.records import iter_records

if TYPE_CHECKING:
    from ottla.broker.log.log_end import LogEnd
    from ottla.broker.log.segment import Segment
    from ottla.broker.log.segments import Segments
    from ottla.protocol.records import BatchHeader

_LONG_BYTES: Final = 64 << 10
_PASSED_AT_ONCE: Final = 256
"""Batches that are too old, passed between two steps: half a millisecond."""


class TimestampOffset(NamedTuple):
    """A record's timestamp and offset."""

    timestamp: int
    offset: int


class Readable(Protocol):
    """The facts of a log that reads depend on."""

    @property
    def segments(self) -> Segments: ...

    @property
    def log_end(self) -> LogEnd: ...

    @property
    def log_start_offset(self) -> int: ...


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


def search(log: Readable, timestamp_ms: int) -> Search:
    """Search the segments of a log, in order. Other work may go on between two candidates."""
    for segment in tuple(log.segments.all):
        newest = log.log_end if segment is log.log_end.segment else segment
        if newest.max_timestamp >= timestamp_ms:
            log.segments.opening(segment)
            found = yield from _in_segment(log, segment, timestamp_ms)
            if found is not None:
                return found
    return None


def newest(log: Readable) -> int:
    """Return the latest timestamp of all batches; -1 where no batch has one."""
    return max(
        (log.log_end if segment is log.log_end.segment else segment).max_timestamp
        for segment in log.segments.all
    )


def _in_segment(log: Readable, segment: Segment, timestamp_ms: int) -> Search:
    near = segment.times.lookup(timestamp_ms)
    start = segment.offsets.lookup(max(near.offset, segment.base_offset)).position
    passed = 0
    for entry in check_entries(segment.file, start, segment.size):
        if entry.max_timestamp < timestamp_ms or entry.last_offset < log.log_start_offset:
            passed += 1
            if passed % _PASSED_AT_ONCE == 0:
                yield None
            continue
        found = yield Candidate(
            entry.data, entry.header, entry.base_offset, timestamp_ms, log.log_start_offset
        )
        if found is not None:
            return found
    return None


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
