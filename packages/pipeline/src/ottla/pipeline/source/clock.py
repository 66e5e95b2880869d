"""The clock of a stream's driver."""

from __future__ import annotations

import time


class Clock:
    """Reads the time and waits; tests replace it with a clock that does not wait."""

    def now_ms(self) -> float:
        """Return a monotonic time."""
        return time.monotonic() * 1_000

    def wait(self, seconds: float) -> None:
        """Sleep for this time."""
        time.sleep(seconds)
