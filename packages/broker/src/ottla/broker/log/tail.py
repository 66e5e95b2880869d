"""The state that every append reads and writes, in one small object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.log.segment import MAX_RELATIVE_OFFSET, UNKNOWN, Segment

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

_NEVER: Final = 2**63 - 1
_MAX_HINTS: Final = 128


class Tail:
    """Where a log is appended to: the active segment, its end, and when to begin another one."""

    __slots__ = (
        "bytes_since_index",
        "created_ms",
        "hints",
        "index_full",
        "index_interval_bytes",
        "leader_epoch",
        "max_bytes",
        "max_next_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "offsets",
        "position",
        "roll_above_timestamp",
        "roll_after_ms",
        "segment",
        "segment_ms",
        "times",
        "write",
    )

    def __init__(self, segment: Segment, next_offset: int, now_ms: int) -> None:
        self.segment = segment
        self.write = segment.file.pwrite
        self.offsets = segment.offsets
        self.times = segment.times
        self.position = segment.size
        self.next_offset = next_offset
        self.max_timestamp = segment.max_timestamp
        self.max_timestamp_offset = segment.max_timestamp_offset
        self.bytes_since_index = 0
        self.created_ms = now_ms
        self.leader_epoch = -1
        self.max_next_offset = segment.base_offset + MAX_RELATIVE_OFFSET + 1
        """A segment has to be rolled before an append ends above it."""
        self.index_full = self.offsets.full or self.times.full
        self.hints: dict[int, int] = {}
        """Offsets readers will most likely ask for, with their positions."""
        self.max_bytes = self.index_interval_bytes = self.segment_ms = 0
        self.roll_above_timestamp = self.roll_after_ms = _NEVER

    def limit(self, config: LogConfig, jitter_ms: int) -> None:
        """Take the topic's limits."""
        self.max_bytes = config.segment_bytes
        self.index_interval_bytes = config.index_interval_bytes
        self.segment_ms = config.segment_ms - jitter_ms
        self._set_age()

    def _set_age(self) -> None:
        # The age counts in the records' own time, from the first one on; without timestamps, in the broker's.
        self.roll_above_timestamp = self.roll_after_ms = _NEVER
        first = self.segment.first_timestamp if self.position else UNKNOWN
        if first >= 0:
            self.roll_above_timestamp = first + self.segment_ms
        elif first != UNKNOWN and self.created_ms:
            self.roll_after_ms = self.created_ms + self.segment_ms

    def append(
        self,
        data: bytes | bytearray | memoryview,
        next_offset: int,
        largest: int,
        largest_at: int,
        now_ms: int,
    ) -> None:
        """Write behind the end and index it. After an OSError `undo` has to be called."""
        position, size = self.position, len(data)
        self.write(data, position)
        if largest <= self.max_timestamp:
            largest, largest_at = self.max_timestamp, self.max_timestamp_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.offsets.append(next_offset - 1, position)
            self.times.maybe_append(largest, largest_at)
            self.bytes_since_index = 0
            self.index_full = self.offsets.full or self.times.full
        if largest > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = largest, largest_at
            self.segment.set_max_timestamp(largest, largest_at)
        self.bytes_since_index += size
        hints = self.hints
        if len(hints) > _MAX_HINTS:
            hints.clear()
        hints[self.next_offset] = position
        self.next_offset = next_offset
        self.position = self.segment.size = position + size
        if not position:
            self.segment.first_timestamp = largest
            self.created_ms = self.created_ms or now_ms
            self._set_age()

    def undo(self) -> None:
        """Cut off what a failed append left in the files."""
        self.segment.file.truncate(self.position)
        self.offsets.truncate_to(self.next_offset)
        self.times.truncate_to(self.next_offset)

    def seal(self) -> None:
        """Leave the segment, cut to what is in it."""
        self.segment.set_max_timestamp(self.max_timestamp, self.max_timestamp_offset)
        self.segment.seal()
