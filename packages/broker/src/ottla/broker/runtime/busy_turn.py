"""The event loop's turns in a long loop of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

BUSY_MS: Final = 4.0
"""How long changes run on the event loop before other tasks run."""


class BusyTurn:
    """Limits how long a loop of changes occupies the event loop."""

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._until_ms = monotonic_ms() + BUSY_MS

    async def maybe_yield(self) -> None:
        """Let other tasks run if this one has run long enough."""
        if self._monotonic_ms() >= self._until_ms:
            await asyncio.sleep(0)
            self._until_ms = self._monotonic_ms() + BUSY_MS
