"""When a broker whose controllership failed may run for election again. Pure."""

from __future__ import annotations

from typing import Final

BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 5_000
FORGIVEN_AFTER_MS: Final = 60_000
"""A failure this long after the last one counts as the first."""


class Candidacy:
    """Later and later, as long as it goes on: another broker may be able to do what this one cannot."""

    def __init__(self) -> None:
        self._failures = 0
        self._failed_ms = -FORGIVEN_AFTER_MS
        self._from_ms = 0.0

    def failed(self, now_ms: float) -> None:
        """Count a failure."""
        self._failures = 0 if now_ms - self._failed_ms > FORGIVEN_AFTER_MS else self._failures + 1
        self._failed_ms = int(now_ms)
        self._from_ms = now_ms + min(MAX_BACKOFF_MS, BACKOFF_MS * 2 ** min(self._failures, 10))

    def wait_ms(self, now_ms: float) -> float:
        """How long not to run for election; 0 when it is free to."""
        return max(0.0, self._from_ms - now_ms)
