"""The pace of cleanings: a limit of bytes per second for all of them together, and a stop at any moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Lock
from typing import Final

_LONGEST_WAIT_MS: Final = 100.0
_BURST_MS: Final = 300.0


class CleaningStopped(Exception):
    """A cleaning is not wanted any more: the broker stops, or the log is deleted, truncated or expired."""


class Throttle:
    """A limit of bytes per second that several threads share; bursts last a third of a second."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._free_at_ms = 0.0
        self._lock = Lock()

    def delay_ms(self, size: int, now_ms: float) -> float:
        """Take so many bytes; returns for how long to wait before the next."""
        with self._lock:
            begin = max(self._free_at_ms, now_ms - _BURST_MS)
            self._free_at_ms = begin + size * 1000 / max(self.bytes_per_second, 1.0)
            return max(0.0, self._free_at_ms - now_ms)


class Pace:
    """The pace of one cleaning, on its thread."""

    def __init__(
        self,
        throttle: Throttle,
        stopping: Event,
        monotonic_ms: Callable[[], float],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._throttle = throttle
        self._stopping = stopping
        self._monotonic_ms = monotonic_ms
        self._is_wanted = is_wanted

    def check(self) -> None:
        """Raise `CleaningStopped` unless the cleaning is still wanted."""
        if self._stopping.is_set() or not self._is_wanted():
            raise CleaningStopped

    def take(self, size: int) -> None:
        """Note bytes that were read or written, and wait as long as the limit asks. Raises as `check`.

        The processor is yielded to other threads: an event loop that was woken on the processor of this
        thread waited for the end of its time slice, milliseconds, with a producer's batch.
        """
        self.check()
        os.sched_yield()
        left_ms = self._throttle.delay_ms(size, self._monotonic_ms())
        while left_ms > 0:
            self._stopping.wait(min(left_ms, _LONGEST_WAIT_MS) / 1000)
            left_ms -= _LONGEST_WAIT_MS
            self.check()
