"""The two clocks of a broker: the wall clock, and one that never goes back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of time, both in milliseconds."""

    def now_ms(self) -> int:
        """Wall-clock time since the epoch, for timestamps of records."""
        ...

    def monotonic_ms(self) -> float:
        """Monotonic time, for waits and timeouts."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6
