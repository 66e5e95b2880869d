"""Which log to compact, how far, which of its segments are written together, and what stays of a batch. Pure.

The dirty part of a log begins where the last cleaning ended and ends before the first record that may not be
cleaned: one that is not stable, not on the disk, in the active segment, or younger than
`min.compaction.lag.ms`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from ottla.broker.log.retention import retention
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchBuilder,
    Buffer,
    Record,
    UnreadableRecords,
    crc32c,
    legacy,
    magic_at,
)

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.compaction.offset_map import OffsetMap
    from ottla.protocol.topics import TopicPartition


_NOT_KEPT: Final = 0x07 | 0x40
"""The attributes of codec and delete horizon."""
_CHECKED_FROM: Final = 21

_MOST_RELATIVE: Final = 2**31 - 1
MOST_SEGMENTS: Final = 50
"""Segments of one group: the event loop opens all of them in one turn, each in less than 0.1 ms."""


def emptied(entry: Buffer) -> bytes:
    """The v2 batch without its records: it covers the same offsets, and keeps the producer's state.

    A message of an older format becomes a batch that covers its last offset.
    """
    if magic_at(entry) != 2:
        offset = legacy.read_entry(entry, check_crc=False).offset
        return BatchBuilder().build(base_offset=offset, last_offset_delta=0)
    batch = bytearray(memoryview(entry)[:BATCH_HEADER_SIZE])
    (attributes,) = struct.unpack_from(">h", batch, 21)
    struct.pack_into(">i", batch, 8, BATCH_HEADER_SIZE - 12)
    struct.pack_into(">h", batch, 21, attributes & ~_NOT_KEPT)
    struct.pack_into(">q", batch, 27, -1)
    struct.pack_into(">i", batch, 57, 0)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[_CHECKED_FROM:]))
    return bytes(batch)


def kept_of_legacy(
    entry: memoryview, keys: OffsetMap, keeps_tombstones: bool, max_decompressed_bytes: int
) -> Buffer | None:
    """Return the kept part of a message of format 0 or 1, or of a compressed set of them; None if nothing is.

    Raises as `records_of_legacy`.
    """
    stored, records = records_of_legacy(entry, max_decompressed_bytes)
    kept = [record for record in records if _is_kept(record, keys, keeps_tombstones)]
    if not kept:
        return None
    if len(kept) == len(records):
        return entry
    messages = [
        legacy.LegacyRecord(record.offset, record.timestamp_ms, record.key, record.value) for record in kept
    ]
    return legacy.encode_set(messages, stored.magic, codec=stored.codec, timestamp_type=stored.timestamp_type)


def records_of_legacy(
    entry: memoryview, max_decompressed_bytes: int
) -> tuple[legacy.LegacyEntry, list[Record]]:
    """Return a message of format 0 or 1 with its records.

    Raises CorruptRecords where its checksum is wrong, and UnreadableRecords where its contents are.
    """
    stored = legacy.read_entry(entry)
    try:
        return stored, list(legacy.records_of(stored, max_decompressed_bytes=max_decompressed_bytes))
    except KafkaError as error:
        raise UnreadableRecords(str(error)) from None


def _is_kept(record: Record, keys: OffsetMap, keeps_tombstones: bool) -> bool:
    if record.offset > keys.latest_offset:
        return True
    if record.key is None or record.offset < keys.get(record.key):
        return False
    return record.value is not None or keeps_tombstones


class Span(retention.Span, Protocol):
    """The facts of a segment that compaction depends on."""

    @property
    def first_timestamp(self) -> int: ...


class DirtyRange(NamedTuple):
    """The part of a log that a cleaning would take in."""

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int = 0
    """By how much its oldest dirty record has exceeded `max.compaction.lag.ms`."""

    @property
    def ratio(self) -> float:
        """The dirty part of the bytes that a cleaning would read."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log should be cleaned now."""
        if not self.dirty_bytes:
            return False
        return self.overdue_ms > 0 or self.ratio > config.min_cleanable_dirty_ratio


class Bounds(NamedTuple):
    """The offsets of a log that compaction depends on."""

    cleaned: int | None
    """Where the last cleaning ended, if there was one."""
    log_start: int
    settled: int
    """Records below it are stable and on the disk."""
    log_end: int


def dirty_range(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> DirtyRange:
    """The part of a log that may be cleaned, the last segment being active."""
    first_dirty = bounds.cleaned
    if first_dirty is None or not bounds.log_start <= first_dirty <= bounds.log_end:
        first_dirty = bounds.log_start
    sealed = segments[: _count_sealed(segments, bounds.settled)]
    if config.min_compaction_lag_ms > 0:
        sealed = _old_enough(segments, sealed, first_dirty, now_ms - config.min_compaction_lag_ms)
    first_uncleanable = segments[len(sealed)].base_offset
    dirty = [segment for segment, end in _with_ends(segments, len(sealed)) if end > first_dirty]
    clean_bytes = sum(segment.size for segment in sealed if segment.base_offset < first_dirty)
    dirty_bytes = sum(segment.size for segment in dirty)
    overdue_ms = _overdue_ms(dirty, config, now_ms)
    return DirtyRange(first_dirty, first_uncleanable, clean_bytes, dirty_bytes, overdue_ms)


def _count_sealed(segments: Sequence[Span], settled: int) -> int:
    return sum(1 for segment in segments[1:] if segment.base_offset <= settled)


def _with_ends(segments: Sequence[Span], count: int) -> list[tuple[Span, int]]:
    return [(segments[number], segments[number + 1].base_offset) for number in range(count)]


def _old_enough(
    segments: Sequence[Span], sealed: Sequence[Span], first_dirty: int, latest_ms: int
) -> Sequence[Span]:
    for number, (segment, end) in enumerate(_with_ends(segments, len(sealed))):
        if end > first_dirty and segment.largest_timestamp > latest_ms:
            return sealed[:number]
    return sealed


def _overdue_ms(dirty: Sequence[Span], config: LogConfig, now_ms: int) -> int:
    if config.max_compaction_lag_ms >= now_ms:
        return 0  # as by default: no look at the segments
    oldest = min(
        (segment.first_timestamp for segment in dirty if segment.first_timestamp > 0), default=now_ms
    )
    return max(0, now_ms - config.max_compaction_lag_ms - oldest)


def dirtiest(
    ranges: Iterable[tuple[TopicPartition, DirtyRange, LogConfig]],
) -> tuple[TopicPartition, DirtyRange] | None:
    """The partition that is due and has the largest ratio of dirty bytes."""
    due = [(partition, dirty) for partition, dirty, config in ranges if dirty.is_due(config)]
    return max(due, key=lambda each: each[1].ratio, default=None)


class Sized(Protocol):
    """A segment that is rewritten together with others."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)


def groups(segments: Sequence[S], end_offset: int, max_bytes: int) -> list[list[S]]:
    """Segments in a row that together fit one segment; `end_offset` is the end of the last one.

    Empty segments at the end of a group are left out of it: the one that is written for it could not reach
    into them.
    """
    found: list[list[S]] = []
    size = 0
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    for segment, end in zip(segments, ends, strict=False):
        fits = found and size + segment.size <= max_bytes and len(found[-1]) < MOST_SEGMENTS
        if fits and end - 1 - found[-1][0].base_offset <= _MOST_RELATIVE:
            found[-1].append(segment)
            size += segment.size
        else:
            found.append([segment])
            size = segment.size
    return [kept for group in found if (kept := _without_empty_end(group))]


def _without_empty_end(group: list[S]) -> list[S]:
    while group and not group[-1].size:
        group = group[:-1]
    return group
