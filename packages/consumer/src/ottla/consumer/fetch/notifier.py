"""Waking those who wait for something to happen."""

from __future__ import annotations

import asyncio


class News:
    """Wakes all who wait, whatever for; they look for themselves whether it was for them."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiting)

    def tell(self) -> None:
        """Wake everybody."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                if not each.done():
                    each.set_result(None)

    async def wait(self, until_s: float | None = None) -> bool:
        """Wait for the next news; return false if the loop's time came before."""
        loop = asyncio.get_running_loop()
        news = loop.create_future()
        self._waiting.append(news)
        timer = None if until_s is None else loop.call_at(until_s, _give_up, news)
        try:
            return await news is None
        finally:
            if timer is not None:
                timer.cancel()
            if news in self._waiting:
                self._waiting.remove(news)


def _give_up(news: asyncio.Future[bool | None]) -> None:
    if not news.done():
        news.set_result(False)
