"""One timer task for all keys of a coordinator: each key fires at its own deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.broker.coordinators.deadline_queue import Deadlines

if TYPE_CHECKING:
    from ottla.broker.runtime.environment import Environment

log = logging.getLogger(__name__)

SHORTEST_SLEEP_MS: Final = 1.0

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """Calls `fire` once for each key whose deadline has passed, on the environment's clock."""

    def __init__(self, environment: Environment, fire: Callable[[K], None]) -> None:
        self._clock = environment.clock
        self._budget = environment.budget
        self._fire = fire
        self._deadlines: Deadlines[K] = Deadlines()
        self._sleeps_until_ms: float | None = None
        self._sooner = asyncio.Event()

    def set(self, key: K, at_ms: float | None) -> None:
        """Fire `key` at this monotonic time instead of the one set before; None cancels it."""
        if at_ms is None:
            self._deadlines.cancel(key)
            return
        self._deadlines.set(key, at_ms)
        if self._sleeps_until_ms is None or at_ms < self._sleeps_until_ms:
            self._sooner.set()

    def cancel(self, key: K) -> None:
        """Do not fire `key` until it is set again."""
        self._deadlines.cancel(key)

    async def run(self) -> None:
        """Fire keys at their deadlines until cancelled."""
        while True:
            self._sooner.clear()
            next_ms = self._sleeps_until_ms = self._deadlines.next_ms()
            pause_ms = None if next_ms is None else next_ms - self._clock.monotonic_ms()
            if pause_ms is None or pause_ms > 0:
                await self._sleep(pause_ms)
            else:
                await asyncio.sleep(0)
            await self._fire_all(self._deadlines.due(self._clock.monotonic_ms()))

    async def _sleep(self, pause_ms: float | None) -> None:
        try:
            async with asyncio.timeout(None if pause_ms is None else max(pause_ms, SHORTEST_SLEEP_MS) / 1000):
                await self._sooner.wait()
        except TimeoutError:
            pass

    async def _fire_all(self, due: Sequence[K]) -> None:
        turn = self._budget.turn()
        for key in due:
            try:
                self._fire(key)
            except Exception:
                # One key that fails must not stop the timers of all others.
                log.exception("timer failed", extra={"key": str(key)})
            await turn.yield_if_spent()
