"""The time of groups: each is woken when it asked for it, by one task for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.coordinators.deadlines import Deadlines
from ottla.broker.groups.hosted import HostedGroup

if TYPE_CHECKING:
    from ottla.broker.environment import Clock

log = logging.getLogger(__name__)

SHORTEST_SLEEP_MS: Final = 1.0
GROUPS_BETWEEN_YIELDS: Final = 50
"""After how many groups a walk through them gives the event loop a turn."""


class Alarms:
    """Calls `wake` for each group at the time its rules named last."""

    def __init__(self, clock: Clock, wake: Callable[[HostedGroup], None]) -> None:
        self._clock = clock
        self._wake_group = wake
        self._wakes: Deadlines[HostedGroup] = Deadlines()
        self._sleeps_until_ms: float | None = None
        self._sooner = asyncio.Event()

    def follow(self, hosted: HostedGroup) -> None:
        """Wake the group when it wants now, and not when it wanted before."""
        wake_ms = hosted.group.wake_at_ms
        if wake_ms is None:
            self._wakes.cancel(hosted)
            return
        self._wakes.set(hosted, wake_ms)
        if self._sleeps_until_ms is None or wake_ms < self._sleeps_until_ms:
            self._sooner.set()

    def cancel(self, hosted: HostedGroup) -> None:
        """Let the group sleep."""
        self._wakes.cancel(hosted)

    async def run(self) -> None:
        """Keep the time for ever."""
        while True:
            self._sooner.clear()
            next_ms = self._sleeps_until_ms = self._wakes.next_ms()
            pause_ms = None if next_ms is None else next_ms - self._clock.monotonic_ms()
            if pause_ms is None or pause_ms > 0:
                await self._sleep(pause_ms)
            else:
                await asyncio.sleep(0)
            await self._wake_all(self._wakes.due(self._clock.monotonic_ms()))

    async def _sleep(self, pause_ms: float | None) -> None:
        try:
            async with asyncio.timeout(None if pause_ms is None else max(pause_ms, SHORTEST_SLEEP_MS) / 1000):
                await self._sooner.wait()
        except TimeoutError:
            pass

    async def _wake_all(self, due: Sequence[HostedGroup]) -> None:
        for count, hosted in enumerate(due, start=1):
            try:
                self._wake_group(hosted)
            except Exception:
                # One group that cannot go on must not stop the time of all others.
                log.exception("group left alone", extra={"group": hosted.group.group_id})
            if count % GROUPS_BETWEEN_YIELDS == 0:
                await asyncio.sleep(0)
