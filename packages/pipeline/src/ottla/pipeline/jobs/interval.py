"""Actions that repeat at an interval. Pure: the caller reads the clock."""

from __future__ import annotations

from math import inf


class Interval:
    """Whether an action is due: the first time at once, then `every_s` after its last start."""

    def __init__(self, every_s: float, last_ms: float = -inf) -> None:
        self._every_ms = every_s * 1_000
        self._last_ms = last_ms

    def is_due(self, now_ms: float) -> bool:
        """Whether the interval has passed."""
        return now_ms - self._last_ms >= self._every_ms

    def restart(self, now_ms: float) -> None:
        """Count the interval from now on."""
        self._last_ms = now_ms
