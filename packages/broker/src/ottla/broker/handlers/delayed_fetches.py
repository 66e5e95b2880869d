"""All fetches that wait: their number is bounded, and they are woken a few at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

WOKEN_AT_ONCE: Final = 50
"""Fetches that are woken in one turn of the event loop."""


class Wait:
    """One fetch that waits. It is woken by any of its partitions, and over after its time."""

    __slots__ = ("_delayed", "changed", "is_over", "is_woken")

    def __init__(self, delayed: DelayedFetches) -> None:
        self._delayed = delayed
        self.changed = asyncio.Event()
        self.is_woken = False
        self.is_over = False
        """Whether it is answered with what there is."""

    def wake(self) -> None:
        """Have the fetch read again."""
        if not self.is_woken:
            self.is_woken = True
            self._delayed.wake(self)

    def end(self) -> None:
        """Have the fetch answered with what there is."""
        self.is_over = True
        self.wake()


class DelayedFetches:
    """The fetches that wait. Wakes a few in each turn of the event loop, for each reads again when woken.

    At most `limit` fetches of clients wait. One more ends the wait of the oldest: its client gets what there
    is, and asks again. Followers are not counted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._of_clients: dict[Wait, None] = {}
        self._woken: deque[Wait] = deque()
        self._room = WOKEN_AT_ONCE
        self._turn_is_planned = False

    def __len__(self) -> int:
        return len(self._of_clients)

    @contextmanager
    def wait(self, *, is_follower: bool, at_most_ms: int) -> Iterator[Wait]:
        """Begin a wait; leaving ends it."""
        wait = Wait(self)
        if not is_follower:
            self._of_clients[wait] = None
            if len(self._of_clients) > self.limit:
                oldest = next(iter(self._of_clients))
                del self._of_clients[oldest]
                oldest.end()
        timer = asyncio.get_running_loop().call_later(at_most_ms / 1000, wait.end)
        try:
            yield wait
        finally:
            timer.cancel()
            self._of_clients.pop(wait, None)

    def wake(self, wait: Wait) -> None:
        """Wake a fetch in this turn of the event loop, or in one of the next."""
        if self._room:
            self._room -= 1
            wait.changed.set()
        else:
            self._woken.append(wait)
        if not self._turn_is_planned:
            self._turn_is_planned = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        used, self._room = self._room < WOKEN_AT_ONCE, WOKEN_AT_ONCE
        while self._woken and self._room:
            self._room -= 1
            self._woken.popleft().changed.set()
        if used or self._woken:
            asyncio.get_running_loop().call_soon(self._next_turn)
        else:
            self._turn_is_planned = False
