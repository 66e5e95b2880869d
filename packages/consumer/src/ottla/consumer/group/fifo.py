"""Doing things one after the other, in the order in which they were asked for."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Turn:
    """A place in the line: entering it waits until all before it have been left."""

    def __init__(self, before: asyncio.Future[None] | None, over: asyncio.Future[None]) -> None:
        self._before = before
        self._over = over

    async def __aenter__(self) -> Self:
        try:
            if self._before is not None and not self._before.done():
                await asyncio.wait([self._before])
        except BaseException:
            self.leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the next one have its turn, once those before are through; twice is as good as once."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.leave())
        elif not self._over.done():
            self._over.set_result(None)


class Turns:
    """The line. A turn is taken when something is asked for, which may be before it can be waited for."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    def take(self) -> Turn:
        """Queue up. Whoever takes a turn enters it, or leaves it."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn = Turn(self._last, over)
        self._last = over
        return turn
