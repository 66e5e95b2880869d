"""Which segments a log may drop: by age, by size, and below its start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig


class Span(Protocol):
    """What retention looks at of a segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def largest_timestamp(self) -> int: ...


class Bounds(NamedTuple):
    """The offsets of a log that matter here."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int


def deletable(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments may go.

    By time and size only if `cleanup.policy` has `delete`; below the log's start always. Nothing at or above
    the high watermark goes. The last segment may go too: it has to be rolled first, and an empty one stays.
    """
    return max(
        (rule(segments, bounds, config, now_ms) for rule in (_too_old, _too_much, _below_start)), default=0
    )


def _candidates(segments: Sequence[Span], bounds: Bounds) -> int:
    """How many segments end at or below the high watermark."""
    ends = [one.base_offset for one in segments[1:]] + [bounds.log_end_offset]
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
    surplus = sum(one.size for one in segments) - config.retention_bytes
    count = 0
    for segment in segments[: _candidates(segments, bounds)]:
        surplus -= segment.size
        if surplus < 0:
            break
        count += 1
    return count


def _below_start(segments: Sequence[Span], bounds: Bounds, config: LogConfig, now_ms: int) -> int:
    ends = [one.base_offset for one in segments[1:]]
    return sum(1 for end in ends if end <= bounds.log_start_offset)
