"""Time, as the driver of a stream needs it."""

from __future__ import annotations

import time


class Clock:
    """Tells the time and lets it pass; a test gives one for which nobody has to wait."""

    def now_ms(self) -> float:
        """Return how much time has passed since some moment."""
        return time.monotonic() * 1_000

    def wait(self, seconds: float) -> None:
        """Come back when so much time has passed."""
        time.sleep(seconds)
