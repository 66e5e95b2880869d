"""One cleaning of one log: decided and settled on the event loop, carried out on a thread.

The log takes appends all the while, and its old segments are read until the new ones take their place. A
cleaning that is not wanted any more, because the log was deleted, truncated or moved, leaves nothing behind
and raises `CleaningStopped`; `SegmentsChanged` when retention has taken segments that it would replace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ottla.broker.log.compaction.cleaned_segment import CleanedSegment
from ottla.broker.log.compaction.cleaning_pace import Pace
from ottla.broker.log.compaction.compaction_rules import groups
from ottla.broker.log.compaction.segment_cleaning import (
    CleaningCounts,
    CleaningFacts,
    CleaningPass,
    LastBatch,
)
from ottla.broker.log.state.outcomes import Compacted, ReplacementBegun, ReplacementSettled

if TYPE_CHECKING:
    from ottla.broker.log.compaction.compaction_rules import DirtyRange
    from ottla.broker.log.compaction.offset_map import OffsetMap
    from ottla.broker.log.compaction.replacement import ReplacementPlan
    from ottla.broker.log.log import Log
    from ottla.broker.log.segments.segment import Segment

R = TypeVar("R")


class OnThread(Protocol):
    """Runs blocking work on a thread; a wait that is cancelled ends with the work."""

    def __call__(self, work: Callable[[], R]) -> Awaitable[R]: ...


class IsWanted:
    """Whether a log is still the one that a cleaning has begun with; asked on any thread."""

    def __init__(self, log: Log, is_current: Callable[[], bool]) -> None:
        self._log = log
        self._is_current = is_current
        self._truncations = log.truncations

    def __call__(self) -> bool:
        log = self._log
        if log.offline is not None or log.is_truncating or not log.config.compact:
            return False
        return log.truncations == self._truncations and self._is_current()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The result of a cleaning."""

    end_offset: int
    counts: CleaningCounts
    unreadable: Mapping[int, str]
    """Batches that were left as they are, because their records cannot be read: base offset and reason."""


class Cleaning:
    """One pass over the part of a log below `dirty.first_uncleanable`.

    `replaced` is given the files to unlink of each group of old segments, as soon as it is replaced.
    """

    def __init__(
        self,
        log: Log,
        dirty: DirtyRange,
        keys: OffsetMap,
        pace: Pace,
        replaced: Callable[[list[Path]], None],
        *,
        io_bytes: int,
        now_ms: int,
    ) -> None:
        self._log = log
        self._dirty = dirty
        self._pace = pace
        self._replaced = replaced
        self._io_bytes = io_bytes
        self._old = [segment for segment in log.segments if segment.base_offset < dirty.first_uncleanable]
        self._pass = CleaningPass(_facts(log, dirty, self._old, io_bytes, now_ms), keys, pace)

    async def run(self, on_thread: OnThread) -> Cleaned:
        """Clean. Raises `CleaningStopped`, `SegmentsChanged`, `MapTooSmall`, CorruptStorage, and OSError.

        A log whose segments could not be exchanged is offline after the OSError. The cleaner offset is set in
        the turn of the last check: a truncation that waited for the last exchange begins after it and lowers
        the offset.
        """
        copies = {segment: segment.copy() for segment in self._old}
        first_dirty = self._dirty.first_dirty
        reached = [(copies[segment], end) for segment, end in self._with_ends() if end > first_dirty]
        await on_thread(lambda: self._pass.index(reached))
        end_offset = self._pass.keys.latest_offset + 1
        read = [segment for segment in self._old if segment.base_offset < end_offset]
        last_end = dict(self._with_ends())[read[-1]]
        for group in groups(read, last_end, self._log.config.segment_bytes):
            await self._clean_group(group, [copies[segment] for segment in group], on_thread)
        self._pace.check()
        self._log.apply(Compacted(end_offset))
        return Cleaned(end_offset, self._pass.counts, self._pass.unreadable)

    def _with_ends(self) -> list[tuple[Segment, int]]:
        ends = [*(segment.base_offset for segment in self._old[1:]), self._dirty.first_uncleanable]
        return list(zip(self._old, ends, strict=True))

    async def _clean_group(self, old: list[Segment], copies: list[Segment], on_thread: OnThread) -> None:
        self._pace.check()
        cleaned = CleanedSegment(self._log, copies, self._io_bytes, self._pace.take)
        try:
            await on_thread(lambda: self._pass.write(copies, cleaned))
            self._pace.check()
            if len(old) == 1 and not cleaned.is_changed:
                await self._discard(cleaned, on_thread)
                return
            plan = self._log.segments.plan_replace(old, [cleaned.segment], cleaned.end_offset)
        except BaseException:
            await self._discard(cleaned, on_thread)
            raise
        self._log.apply(ReplacementBegun(plan))
        await self._replace(plan, on_thread)

    async def _discard(self, cleaned: CleanedSegment, on_thread: OnThread) -> None:
        """Remove the files of a cleaned segment.

        On a thread: to unlink a large file takes milliseconds. When the log was deleted meanwhile, they may
        be in the directory of a new log of its name. That has no files of these names itself, because its
        partition is not cleaned before this cleaning has ended.
        """
        try:
            await on_thread(cleaned.discard)
        except OSError:
            if self._log.offline is None:
                raise

    async def _replace(self, plan: ReplacementPlan, on_thread: OnThread) -> None:
        log = self._log
        try:
            try:
                await on_thread(plan.run)
            finally:
                log.apply(ReplacementSettled(plan))
                if plan.is_done:
                    self._replaced(plan.deleted)
        except OSError as error:
            log.fail(error)
            raise


def _facts(log: Log, dirty: DirtyRange, old: list[Segment], io_bytes: int, now_ms: int) -> CleaningFacts:
    clean = [segment for segment in old if segment.base_offset < dirty.first_dirty]
    horizon_ms = clean[-1].last_modified_ms - log.config.delete_retention_ms if clean else 0
    return CleaningFacts(
        first_dirty=dirty.first_dirty,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        legacy_horizon_ms=horizon_ms,
        aborted=tuple(log.aborted_transactions(log.segments[0].base_offset, dirty.first_uncleanable)),
        last_batches=_last_batches(log),
        io_bytes=io_bytes,
    )


def _last_batches(log: Log) -> dict[int, LastBatch]:
    return {
        producer.producer_id: LastBatch(
            producer.batches[-1].last_offset if producer.batches else None, producer.epoch
        )
        for producer in log.producers
    }
