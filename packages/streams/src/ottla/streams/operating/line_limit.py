"""Limits log lines that an outage repeats for every record. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

EVERY_MS: Final = 1_000
MOST_SUBJECTS: Final = 1_000


class LineLimit:
    """Admits one line per subject and second, or `every_ms`, and counts those between.

    A subject is what lines have in common, the type of an exception for example. Of more than 1,000 subjects
    the oldest is forgotten, with its count.
    """

    def __init__(self, now_ms: Callable[[], float], *, every_ms: int = EVERY_MS) -> None:
        """`now_ms` is a clock that never goes back."""
        self._now_ms = now_ms
        self._every_ms = every_ms
        self._next_ms: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def admit(self, subject: str) -> int | None:
        """Return how many lines about a subject were left out before this one; None: leave this out too."""
        now_ms = self._now_ms()
        if now_ms < self._next_ms.get(subject, now_ms):
            self._left_out[subject] = self._left_out.get(subject, 0) + 1
            return None
        self._next_ms[subject] = now_ms + self._every_ms
        if len(self._next_ms) > MOST_SUBJECTS:
            oldest = next(iter(self._next_ms))
            del self._next_ms[oldest]
            self._left_out.pop(oldest, None)
        return self._left_out.pop(subject, 0)
