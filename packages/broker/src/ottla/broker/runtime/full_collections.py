"""Full garbage collections wait while long requests have their elements in memory.

A full collection looks at every object that lives. Requests of 100,000 elements make a million of them, which
go by reference counts when the answer is sent; until then a collection stops the event loop for a tenth of a
second and more, and finds nothing. Collections of the young generations go on.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

NEVER: Final = 2**31 - 1
QUIET_S: Final = 1.0
"""Time without a step of a long request after which full collections are possible again."""
LONGEST_S: Final = 60.0
"""Cycles of an endless attack are garbage, too: after this time a full collection is possible in any case."""


class FullCollections:
    """Holds full collections of this process off, from the event loop."""

    def __init__(self) -> None:
        self._thresholds: tuple[int, int, int] | None = None
        self._last_s = 0.0
        self._since_s = 0.0

    @property
    def are_held_off(self) -> bool:
        """Whether no full collection begins by itself now."""
        return self._thresholds is not None

    def hold_off(self) -> None:
        """Let none begin until nobody has called this for a second, a minute at most."""
        loop = asyncio.get_running_loop()
        self._last_s = loop.time()
        thresholds = gc.get_threshold()
        if self._thresholds is None and thresholds[2] != NEVER:  # else another broker of this process does
            self._since_s = self._last_s
            self._thresholds = thresholds
            gc.set_threshold(self._thresholds[0], self._thresholds[1], NEVER)
            loop.call_later(QUIET_S, self._look_again)

    def allow(self) -> None:
        """Make full collections possible again: the loop may end before the second does."""
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            self._thresholds = None

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s - self._last_s < QUIET_S and now_s - self._since_s < LONGEST_S and self.are_held_off:
            loop.call_later(QUIET_S, self._look_again)
        else:
            self.allow()
