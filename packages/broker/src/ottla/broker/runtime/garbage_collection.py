"""The garbage collector's policy: it never stops the event loop for long, and finds what there is to find.

A full collection looks at every object that it does not know to stay, and stops the loop meanwhile. Three
rules keep it short, from the start of a process to its end:

1. While a broker starts nothing is collected. The objects that a start makes stay, and are set aside.
2. A full collection comes early, after few new objects. The survivors of one that took long are set aside for
   an hour: with 12,000 connections it would take 150 ms, again and again while they come. An object that was
   set aside goes by its references when its connection is closed; only cycles wait.
3. While requests have thousands of elements in memory, full collections wait. Those of 100,000 elements make
   a million objects, which go by their references when the answer is sent; a collection of them would take a
   tenth of a second and more, and find nothing. Collections of the young generations go on.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, Final

LONG_MS: Final = 2.5
"""A full collection that takes longer sets its survivors aside."""
LOOK_AGAIN_AFTER_MS: Final = 3_600_000.0
FULL_AFTER: Final = 1
"""Middle collections before a full one, each of about 8,000 new objects. Python's default is 10."""
NEVER: Final = 2**31 - 1
QUIET_S: Final = 1.0
"""Time without a step of a long request after which full collections are possible again."""
LONGEST_S: Final = 60.0
"""Cycles of an endless attack are garbage, too: after this time a full collection is possible in any case."""
_OLDEST: Final = 2


def begin_start() -> None:
    """Collect nothing while a broker starts (rule 1)."""
    gc.disable()


class Collector:
    """The collector of this process, as one broker uses it. It is one of `gc.callbacks`."""

    def __init__(
        self,
        now_ms: Callable[[], float],
        *,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        """`now_ms` is a clock that never goes back."""
        self._now_ms = now_ms
        self._freeze, self._unfreeze = freeze, unfreeze
        self._looked_at_all_ms = self._began_ms = now_ms()
        self._thresholds: tuple[int, int, int] | None = None
        self._last_s = 0.0
        self._since_s = 0.0

    # ---- rule 1: the start

    def end_start(self) -> None:
        """Collect from here on, by rule 2, without the objects that the start has made.

        Only a process that is a broker calls this: the thresholds of others are their own.
        """
        gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: else the next waits until a quarter as many objects are new
        collect_fully_early()
        gc.callbacks.append(self)
        gc.enable()

    # ---- rule 2: long collections

    def __call__(self, phase: str, info: dict[str, Any]) -> None:
        """Take note of a collection that begins or ends."""
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began_ms = self._now_ms()
        elif self._now_ms() - self._began_ms > LONG_MS:
            self._set_survivors_aside()

    def _set_survivors_aside(self) -> None:
        self._freeze()
        now_ms = self._now_ms()
        if now_ms - self._looked_at_all_ms >= LOOK_AGAIN_AFTER_MS:
            self._looked_at_all_ms = now_ms
            self._unfreeze()  # the next full collection looks at everything

    # ---- rule 3: long requests

    @property
    def is_held_off(self) -> bool:
        """Whether no full collection begins by itself now."""
        return self._thresholds is not None

    def hold_off(self) -> None:
        """Begin no full collection until a second after the last call, and for a minute at most."""
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
        if now_s - self._last_s < QUIET_S and now_s - self._since_s < LONGEST_S and self.is_held_off:
            loop.call_later(QUIET_S, self._look_again)
        else:
            self.allow()


def collect_fully_early() -> None:
    """Begin full collections after few new objects (rule 2)."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_AFTER)
