"""The offsets that may be committed: those below the lowest offset that is not finished. Pure.

Parallel work finishes out of order. Committing past an unfinished record would lose it in a crash, so the
commit waits at the frontier, and finished offsets beyond it are remembered.
"""

from __future__ import annotations

from collections import OrderedDict


class Frontier:
    """Offsets of one partition between started and committed.

    Offsets are started in ascending order, with gaps where compaction or control records left them.
    """

    def __init__(self, position: int = 0) -> None:
        self._next = position
        # Not a dict: to find its first key, a dict scans all deleted entries in front.
        self._open: OrderedDict[int, None] = OrderedDict()

    @property
    def position(self) -> int:
        """The offset to commit: every record below it is finished."""
        return next(iter(self._open), self._next)

    @property
    def unfinished(self) -> int:
        """Number of offsets that are started and not finished."""
        return len(self._open)

    @property
    def span(self) -> int:
        """Offsets between the commit and the newest started one: the most that a crash would repeat."""
        return self._next - self.position

    def start(self, offset: int) -> None:
        """Register a record that is handed out. Raises ValueError for an offset below an earlier one."""
        if offset < self._next:
            raise ValueError(f"offset {offset} is too low; the next is {self._next} or above")
        self._open[offset] = None  # its first key is the frontier
        self._next = offset + 1

    def finish(self, offset: int) -> bool:
        """Register a finished record; return whether the frontier moved.

        Raises KeyError for an offset that was not started or is already finished.
        """
        before = self.position
        del self._open[offset]
        return self.position != before

    def reset(self, position: int) -> None:
        """Forget everything and start at an offset."""
        self._open.clear()
        self._next = position
