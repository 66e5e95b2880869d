"""Reads of one log: an offset's batches, a timestamp's offset, the aborted transactions of a range."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from ottla.broker.log.files.file_slices import Slice
from ottla.broker.log.segments.offset_lookup import whole_end
from ottla.broker.log.segments.timestamp_search import (
    Search,
    TimestampOffset,
    at_once,
    end_of,
    newest,
    search,
)
from ottla.protocol.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from ottla.broker.log.segments.segment import Segment
    from ottla.broker.log.state.log_state import LogState
    from ottla.protocol.storage.indexes import AbortedTransaction

_MAX_HINTS: Final = 128


class Reading:
    """The reads of one log, on the event loop."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    # ---- by offset

    def read(
        self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool = True, wait: bool = True
    ) -> Slice:
        """Whole batches of one segment, from the one that holds `offset` on, below `up_to`.

        At most `max_bytes`, but the first batch at any size if `at_least_one`. Empty where there is nothing
        to read. Raises `OffsetOutOfRange` outside of the log, `CorruptStorage` for a damaged one, and, unless
        `wait`, BlockingIOError where finding the batches would have to wait for the disk.
        """
        log = self._log
        log_end = log.log_end
        if not log.log_start_offset <= offset <= log_end.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in {log}")
        if up_to > log_end.next_offset:
            up_to = log_end.next_offset
        if offset >= up_to:
            return Slice(log_end.segment.file, 0, 0)
        segment = log_end.segment
        if offset >= segment.base_offset:
            start = log_end.hints.get(offset, -1)
        else:
            segments = log.segments
            segment, start = segments.resume.get(offset) or (segments.find(offset), -1)
            segments.opening(segment)
        if start < 0:
            segment, start = self._find(segment, offset, wait)
            if start < 0:
                return Slice(log_end.segment.file, 0, 0)
        stop = self._position_of(segment, up_to, wait)
        end, end_offset = stop, min(up_to, end_of(self._log, segment))
        if stop - start > max_bytes:
            limit = start + max_bytes
            end, next_offset = whole_end(
                segment.file, segment.offsets, start, limit, stop, at_least_one=at_least_one, wait=wait
            )
            if next_offset >= 0:
                self._remember(segment, next_offset, end)
                end_offset = next_offset
        return Slice(segment.file, start, end - start if end > start else 0, end_offset)

    def _find(self, segment: Segment, offset: int, wait: bool) -> tuple[Segment, int]:
        """The batch that holds `offset`, or the first one behind it where compaction dropped that."""
        segments = self._log.segments
        for number in range(bisect_right(segments.bases, segment.base_offset) - 1, len(segments.bases)):
            candidate = segments.all[number]
            segments.opening(candidate)
            found = candidate.locate(offset, wait=wait)
            if found is not None:
                self._remember(candidate, offset, found.position)
                return candidate, found.position
        return segment, -1

    def _position_of(self, segment: Segment, up_to: int, wait: bool) -> int:
        """The position in a segment where the batches below `up_to` end."""
        if segment.active:
            log_end = self._log.log_end
            if up_to == log_end.next_offset:
                return segment.size
            if (hint := log_end.hints.get(up_to)) is not None:
                return hint
        elif up_to >= end_of(self._log, segment):
            return segment.size
        found = segment.locate(up_to, wait=wait)
        return segment.size if found is None else found.position

    def _remember(self, segment: Segment, offset: int, position: int) -> None:
        """Note a position where a reader most likely continues."""
        if segment.active:
            hints = self._log.log_end.hints
            if len(hints) >= _MAX_HINTS:
                hints.clear()
            hints[offset] = position
        elif position < segment.size:
            resume = self._log.segments.resume
            if len(resume) >= _MAX_HINTS:
                resume.clear()
            resume[offset] = segment, position

    # ---- by timestamp

    def max_timestamp(self) -> int:
        """Return the latest timestamp of all batches; -1 where no batch has one."""
        return newest(self._log)

    def search_timestamp(self, timestamp_ms: int) -> Search:
        """Search the first record at or after a time; the caller looks into the batches that are found."""
        return search(self._log, timestamp_ms)

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time; None if there is none. Blocks while batches are opened."""
        return at_once(search(self._log, timestamp_ms))

    # ---- transactions

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records between two offsets, by their first offsets.

        Behind an entry whose last stable offset is at `end_offset` or above, no other one began below it.
        """
        segments, found = self._log.segments, []
        for segment in segments.all[max(0, bisect_right(segments.bases, start_offset) - 1) :]:
            for transaction in segment.transactions.entries:
                if transaction.last_offset >= start_offset and transaction.first_offset < end_offset:
                    found.append(transaction)
                if transaction.last_stable_offset >= end_offset:
                    return sorted(found, key=_first_offset)
        return sorted(found, key=_first_offset)


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset
