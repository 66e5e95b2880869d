"""The offsets that may be committed: those below the lowest offset that is not finished. Pure.

Parallel work finishes out of order. Committing past an unfinished record would lose it in a crash, so the
commit waits at the frontier, and the finished offsets after it go into the commit metadata.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from ottla.streams.scheduling.finished_offsets import Ranges

_COMPACT_FROM = 4_096


class Frontier:
    """The offsets of one partition from the lowest unfinished one on.

    Offsets are started in ascending order, with gaps where compaction or control records left them: a gap
    belongs to the offsets before it. `known` are ranges that an earlier reader finished.
    """

    __slots__ = ("_base", "_done", "_head", "_known", "_offsets", "next_offset", "unfinished")

    def __init__(self, position: int | None = None, known: Ranges = ()) -> None:
        self.next_offset = position
        """The lowest offset that may start next; None before the first, if nothing was committed."""
        self.unfinished = 0
        """The number of offsets that are started and not finished."""
        self._known = [each for each in known if position is not None and each[1] > position]
        self._offsets = array("q")
        self._done = bytearray()
        self._head = 0
        self._base = 0

    @property
    def position(self) -> int | None:
        """The offset to commit: every record below it is finished. None: nothing is known yet."""
        return self._offsets[self._head] if self._head < len(self._offsets) else self.next_offset

    @property
    def ahead(self) -> int:
        """The number of offsets that were started from the position on."""
        return len(self._offsets) - self._head

    @property
    def span(self) -> int:
        """The distance from the position to the last offset that is started or known finished."""
        position = self.position
        if position is None or self.next_offset is None:
            return 0
        return max(self.next_offset, self._known[-1][1] if self._known else 0) - position

    @property
    def known_ranges(self) -> int:
        """The number of ranges that an earlier reader finished, not reached yet."""
        return len(self._known)

    def start(self, offset: int) -> int:
        """Register a record; return its number for `finish`, or -1 if an earlier reader finished it.

        Raises ValueError for an offset below an earlier one.
        """
        expected = self.next_offset
        if expected is not None and offset < expected:
            raise ValueError(f"offset {offset} is too low; the next is {self.next_offset} or above")
        offsets = self._offsets
        number = self._base + len(offsets)
        is_known = bool(self._known) and self._is_known(offset)
        offsets.append(offset)
        self._done.append(is_known)
        self.next_offset = offset + 1
        if not is_known:
            self.unfinished += 1
            return number
        self._move()
        return -1

    def advance(self, next_offset: int) -> None:
        """Register that no record below an offset comes any more."""
        if self.next_offset is None or next_offset > self.next_offset:
            self.next_offset = next_offset
            self._drop_known(next_offset)

    def finish(self, number: int) -> bool:
        """Register a finished record; return whether the frontier moved."""
        index = number - self._base
        done = self._done
        done[index] = 1
        self.unfinished -= 1
        if index != self._head:
            return False
        following = index + 1
        if following < len(done) and following < _COMPACT_FROM and not done[following]:
            self._head = following  # the common case: the next one is not finished
        else:
            self._move()
        return True

    def finished_ranges(self) -> list[tuple[int, int]]:
        """Return the finished offsets after the position, as ascending ranges with a gap between them."""
        found: list[tuple[int, int]] = []
        done, offsets, size = self._done, self._offsets, len(self._done)
        first = done.find(1, self._head)
        while first >= 0:
            end = done.find(0, first)
            assert self.next_offset is not None, "a record was started"
            found.append((offsets[first], offsets[end] if 0 <= end < size else self.next_offset))
            first = done.find(1, end) if end >= 0 else -1
        for known in self._known:
            _append(found, max(known[0], self.next_offset or 0), known[1])
        return found

    def _is_known(self, offset: int) -> bool:
        self._drop_known(offset)
        return bool(self._known) and self._known[0][0] <= offset

    def _drop_known(self, offset: int) -> None:
        passed = bisect_right(self._known, offset, key=lambda each: each[1])
        del self._known[:passed]

    def _move(self) -> None:
        """Move to the next unfinished offset, and forget the offsets before it now and then."""
        head = self._done.find(0, self._head)
        self._head = head = len(self._done) if head < 0 else head
        if head >= _COMPACT_FROM and head * 2 >= len(self._done):
            del self._offsets[:head], self._done[:head]
            self._base += head
            self._head = 0


def _append(found: list[tuple[int, int]], first: int, end: int) -> None:
    if found and found[-1][1] >= first:
        found[-1] = (found[-1][0], max(end, found[-1][1]))
    elif first < end:
        found.append((first, end))
