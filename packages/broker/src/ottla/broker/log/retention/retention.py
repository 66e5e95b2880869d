"""Retention: which segments a log may drop by age, by size, and below its start, and taking them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.log.segments.rolling import roll
from ottla.broker.log.state.outcomes import Expired
from ottla.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.segments.segment import Segment
    from ottla.broker.log.state.log_state import LogState


class Span(Protocol):
    """The facts of a segment that retention depends on."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def largest_timestamp(self) -> int: ...


class Bounds(NamedTuple):
    """The offsets of a log that retention depends on."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int


def deletable(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments may be dropped.

    By time and size only if `cleanup.policy` has `delete`; below the log start always. No record at or above
    the high watermark is dropped. The last segment may be dropped too: it has to be rolled first, and an
    empty one stays.
    """
    return max(
        (rule(segments, bounds, config, now_ms) for rule in (_too_old, _too_much, _below_start)), default=0
    )


def _candidates(segments: Sequence[Span], bounds: Bounds) -> int:
    """How many segments end at or below the high watermark."""
    ends = [segment.base_offset for segment in segments[1:]] + [bounds.log_end_offset]
    count = sum(1 for end in ends if end <= bounds.high_watermark)
    if count == len(segments) and not segments[-1].size:
        count -= 1
    return count


def _too_old(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    if not config.delete or config.retention_ms < 0:
        return 0
    count = 0
    for segment in segments[: _candidates(segments, bounds)]:
        if now_ms - segment.largest_timestamp <= config.retention_ms:
            break
        count += 1
    return count


def _too_much(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    if not config.delete or config.retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments[: _candidates(segments, bounds)]:
        surplus -= segment.size
        if surplus < 0:
            break
        count += 1
    return count


def _below_start(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    ends = [segment.base_offset for segment in segments[1:]]
    return sum(1 for end in ends if end <= bounds.log_start_offset)


# ---- taking segments out


def expire(log: LogState, now_ms: int) -> list[Segment]:
    """Take the segments that retention drops out of a log, rolling the active one if it is among them.

    Give them to `Segment.mark_deleted` once the new log start is on the disk.
    """
    if not log.takes_appends:
        return []
    bounds = Bounds(log.log_start_offset, log.high_watermark, log.log_end_offset)
    count = min(deletable(log.segments.all, bounds, log.config, now_ms), log.segments.droppable)
    if count and count == len(log.segments) and not _rolled(log, now_ms):
        count -= 1
    if not count:
        return []
    first_kept = log.segments[count].base_offset
    expired = Expired(log.segments.all[:count], max(first_kept, log.log_start_offset))
    log.apply(expired)
    return expired.segments


def _rolled(log: LogState, now_ms: int) -> bool:
    """Roll the log; False if the disk has no room for a new segment."""
    try:
        roll(log, now_ms)
    except KafkaStorageError:
        if log.offline is not None:
            raise
        return False
    return True
