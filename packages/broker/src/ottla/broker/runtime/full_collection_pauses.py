"""Full garbage collections stay short, however many connections there are.

A full collection looks at every object that it does not know to stay, and stops the event loop meanwhile: for
150 ms with 12,000 connections, again and again while they come. What survives a collection that took long is
not looked at again for an hour. It goes by reference counts when its connection is closed; only cycles wait.
What has come since then is looked at early, so that the first collection that takes long is not much longer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Final

from ottla.broker.runtime.environment import SystemClock

LONG_MS: Final = 5.0
LOOK_AGAIN_AFTER_MS: Final = 3_600_000.0
FULL_AFTER: Final = 2
"""Middle collections before a full one, each of about 8,000 new objects. Python's default is 10."""
_OLDEST: Final = 2


def collect_fully_early() -> None:
    """Have full collections come after few new objects."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)


class FullCollectionPauses:
    """Keeps the full collections of this process short, as one of `gc.callbacks`."""

    def __init__(
        self,
        now_ms: Callable[[], float] | None = None,
        *,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        """`now_ms` is a clock that never goes back; by default the machine's."""
        self._now_ms = now_ms or SystemClock().monotonic_ms
        self._freeze, self._unfreeze = freeze, unfreeze
        self._looked_at_all_ms = self._began_ms = self._now_ms()

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Take note of a collection that begins or ends."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began_ms = self._now_ms()
        elif self._now_ms() - self._began_ms > LONG_MS:
            self._was_long()

    def _was_long(self) -> None:
        self._freeze()
        now_ms = self._now_ms()
        if now_ms - self._looked_at_all_ms >= LOOK_AGAIN_AFTER_MS:
            self._looked_at_all_ms = now_ms
            self._unfreeze()  # the next full collection looks at everything
