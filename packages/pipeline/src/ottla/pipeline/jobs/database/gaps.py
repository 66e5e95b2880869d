"""Numbers that a table skipped, and that may still come. Pure.

Databases give out numbers before transactions commit, so that 5 may be there later than 6. Whoever only asks
for what is above 6 never sees it. So the numbers below the place that were not seen are asked for again, for
as long as they are near: most of them belong to transactions that were rolled back, and never come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenNumbers:
    """How far the numbers of a table were seen."""

    last: int | None = None
    gaps: tuple[int, ...] = ()
    """Numbers below `last` that were not seen, ascending."""

    def after(self, seen: Iterable[int], overlap: int) -> SeenNumbers:
        """Return how it stands after some numbers were seen too; holes further back than `overlap` close."""
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
