"""Deadlines of a coordinator's keys, ordered by time, and the one task that fires them.

A deadline is cheap to move to a later time, which each heartbeat does.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from ottla.broker.runtime.environment import Environment


K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

SHORTEST_SLEEP_MS: Final = 1.0


class Deadlines(Generic[K]):
    """One deadline per key, in milliseconds of a clock that never steps back.

    Moving a deadline to a later time costs one dictionary write, however many there are. The heap keeps the
    older, earlier time, and the key is looked up again when that time passes.
    """

    __slots__ = ("_at", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def set(self, key: K, at_ms: float) -> None:
        """Set the deadline of `key`, in place of the one it had."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._at.pop(key, None)

    def get(self, key: K) -> float | None:
        """Return the deadline of `key`, or None."""
        return self._at.get(key)

    def __len__(self) -> int:
        return len(self._at)

    def next_ms(self) -> float | None:
        """Return a time before which no key is due; None without deadlines."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._at.get(key) is not None and self._is_current(key, queued_ms):
                return queued_ms
            self._discard_first()
        return None

    def due(self, now_ms: float, most: int | None = None) -> list[K]:
        """Remove and return the keys whose deadline has passed, the earliest first.

        Of more than `most` the others stay due: thousands of members may fall silent at once.
        """
        due: list[K] = []
        while self._heap and self._heap[0][0] <= now_ms and (most is None or len(due) < most):
            queued_ms, _, key = heapq.heappop(self._heap)
            if not self._is_current(key, queued_ms):
                continue
            del self._queued[key]
            at_ms = self._at.get(key)
            if at_ms is None:
                continue
            if at_ms > now_ms:
                self._push(key, at_ms)
            else:
                del self._at[key]
                due.append(key)
        return due

    def _is_current(self, key: K, queued_ms: float) -> bool:
        return self._queued.get(key) == queued_ms

    def _push(self, key: K, at_ms: float) -> None:
        self._queued[key] = at_ms
        self._serial += 1
        heapq.heappush(self._heap, (at_ms, self._serial, key))

    def _discard_first(self) -> None:
        queued_ms, _, key = heapq.heappop(self._heap)
        if self._is_current(key, queued_ms) and key not in self._at:
            del self._queued[key]


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
