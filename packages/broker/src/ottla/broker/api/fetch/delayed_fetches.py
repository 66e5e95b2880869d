"""All fetches that wait, on both paths: their number is bounded, and few are woken at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.broker.runtime.loop_budget import StepQueue

if TYPE_CHECKING:
    from ottla.broker.runtime.loop_budget import LoopBudget

READ_MS: Final = 0.1
"""The time that a fetch is expected to take which was woken and reads again."""


class Wait:
    """One fetch that waits. It is woken by any of its partitions, and over after its time."""

    __slots__ = ("_delayed", "_timer", "is_over", "is_woken", "resume")

    def __init__(self, delayed: DelayedFetches, resume: Callable[[], object], at_most_ms: int) -> None:
        """`resume` has the fetch read again, in another turn of the event loop."""
        self._delayed = delayed
        self._timer = asyncio.get_running_loop().call_later(at_most_ms / 1000, self.end)
        self.resume = resume
        self.is_woken = False
        self.is_over = False
        """Whether it is answered with the records that there are."""

    def wake(self) -> None:
        """Read again, in this turn of the event loop or a later one."""
        if not self.is_woken:
            self.is_woken = True
            self._delayed.wake(self)

    def end(self) -> None:
        """End the wait: the fetch is answered with the records that there are."""
        self.is_over = True
        self.wake()

    def close(self) -> None:
        """End the wait: the fetch is answered, or its client is gone."""
        self._timer.cancel()
        self._delayed.forget(self)


class DelayedFetches:
    """The fetches that wait. Wakes a few in each turn of the event loop, for each reads again when woken.

    At most `limit` fetches of clients wait. One more ends the wait of the oldest: its client gets what there
    is, and asks again. Followers are not counted.
    """

    def __init__(self, limit: int, budget: LoopBudget) -> None:
        self.limit = limit
        self._of_clients: dict[Wait, None] = {}
        self._woken = StepQueue(budget.woken_fetches, READ_MS)

    def __len__(self) -> int:
        return len(self._of_clients)

    def begin(self, resume: Callable[[], object], *, is_follower: bool, at_most_ms: int) -> Wait:
        """Begin a wait; its `close` ends it."""
        wait = Wait(self, resume, at_most_ms)
        if not is_follower:
            self._of_clients[wait] = None
            if len(self._of_clients) > self.limit:
                oldest = next(iter(self._of_clients))
                del self._of_clients[oldest]
                oldest.end()
        return wait

    def forget(self, wait: Wait) -> None:
        """Count a wait no longer."""
        self._of_clients.pop(wait, None)

    def wake(self, wait: Wait) -> None:
        """Wake a fetch in this turn of the event loop, or in one of the next."""
        self._woken.call(wait.resume)
