"""Wake tasks that wait for a change of the consumer's state."""

from __future__ import annotations

import asyncio


class StateChangeNotifier:
    """Wakes all waiting tasks at once; each of them checks whether its condition holds."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def has_waiters(self) -> bool:
        """Whether a task waits."""
        return bool(self._waiters)

    def notify(self) -> None:
        """Wake all waiting tasks."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self, until_s: float | None = None) -> bool:
        """Wait for the next notification; return false if the loop's clock reached `until_s` before it."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = None if until_s is None else loop.call_at(until_s, _time_out, waiter)
        try:
            return await waiter is None
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _time_out(waiter: asyncio.Future[bool | None]) -> None:
    if not waiter.done():
        waiter.set_result(False)
