"""Gaps in a table's increasing ids that may still be filled. Pure.

Databases assign ids before transactions commit, so row 5 may become visible after row 6. A reader that only
asks for ids above 6 never sees it. So ids below the position that were not seen are queried again while they
are near. Most of them belong to transactions that were rolled back, and never appear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenNumbers:
    """The last id that was seen, and the gaps below it."""

    last: int | None = None
    gaps: tuple[int, ...] = ()
    """Ids below `last` that were not seen, ascending."""

    def after(self, seen: Iterable[int], overlap: int) -> SeenNumbers:
        """Return the state after these ids were seen too; drop gaps more than `overlap` below the last id."""
        numbers = sorted(set(seen))
        if not numbers:
            return self
        last = numbers[-1] if self.last is None else max(self.last, numbers[-1])
        # The first row that is seen may have been overtaken too; databases count from 1.
        begin = min(1, numbers[0]) if self.last is None else self.last + 1
        lowest = last - overlap
        new = set(range(max(begin, lowest), last)) if overlap else set()
        left = (new | set(self.gaps)) - set(numbers)
        return SeenNumbers(last, tuple(sorted(each for each in left if each >= lowest)))
