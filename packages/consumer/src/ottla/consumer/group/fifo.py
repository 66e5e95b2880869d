"""Run operations one after the other, in the order in which they were requested."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Ticket:
    """A position in the queue: entering it waits until all earlier tickets were released."""

    def __init__(self, before: asyncio.Future[None] | None, released: asyncio.Future[None]) -> None:
        self._before = before
        self._released = released

    async def __aenter__(self) -> Self:
        try:
            if self._before is not None and not self._before.done():
                await asyncio.wait([self._before])
        except BaseException:
            self.release()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Admit the next ticket, once all earlier ones were released. Idempotent."""
        if self._before is not None and not self._before.done():
            self._before.add_done_callback(lambda _: self.release())
        elif not self._released.done():
            self._released.set_result(None)


class Fifo:
    """A queue of operations: a ticket is taken when one is requested, and entered when it is awaited."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    def take(self) -> Ticket:
        """Return the next ticket. The caller must enter or release it."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = Ticket(self._last, released)
        self._last = released
        return ticket
