"""What may be committed: the lowest offset that is not finished. Pure.

Work that runs in parallel finishes out of order. To commit past an unfinished record would lose it in a
crash, so the commit waits at the frontier, and what is finished beyond it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict


class Frontier:
    """Offsets of one partition between started and committed.

    Offsets are started in rising order, with gaps where compaction or control records left them.
    """

    def __init__(self, position: int = 0) -> None:
        self._next = position
        # Not a dict: to find its first key it walks over all that were deleted in front.
        self._open: OrderedDict[int, None] = OrderedDict()

    @property
    def position(self) -> int:
        """The offset to commit: every record below it is finished."""
        return next(iter(self._open), self._next)

    @property
    def unfinished(self) -> int:
        """How many offsets are started and not finished."""
        return len(self._open)

    @property
    def span(self) -> int:
        """How far work ran ahead of the commit, in offsets: what a crash would do again, at most."""
        return self._next - self.position

    def start(self, offset: int) -> None:
        """Take note of a record that is given out. Raises ValueError for one below those before."""
        if offset < self._next:
            raise ValueError(f"offset {offset} was passed already; the next is {self._next} or above")
        self._open[offset] = None  # its first key is the frontier
        self._next = offset + 1

    def finish(self, offset: int) -> bool:
        """Take note of a finished record; say whether the position moved.

        Raises KeyError for one that was not started, or was finished before.
        """
        before = self.position
        del self._open[offset]
        return self.position != before

    def reset(self, position: int) -> None:
        """Forget everything and begin again at an offset."""
        self._open.clear()
        self._next = position
