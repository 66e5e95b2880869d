"""Marks of handled records, many in one write: those that come while one is under way are the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ottla.streams.dedupe.in_flight import Admission
from ottla.streams.dedupe.store import Scope

MAX_MARKS: Final = 2_000

Handled = tuple[Admission, asyncio.Future[None]]


class Marking:
    """Marks admissions with `write`, one write per scope at a time, in tasks that end when there is no more.

    `close` gives the locks of an admission back. It is called after the write, also after one that failed.
    """

    def __init__(
        self,
        write: Callable[[list[Admission]], Awaitable[None]],
        close: Callable[[Admission], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._write = write
        self._close = close
        self._spawn = spawn
        self._waiting: dict[Scope, list[Handled]] = {}

    def submit(self, admission: Admission, finished: asyncio.Future[None]) -> None:
        """Mark an admission soon, and set the future then."""
        waiting = self._waiting.get(admission.state.scope)
        if waiting is not None:
            waiting.append((admission, finished))
            return
        self._waiting[admission.state.scope] = [(admission, finished)]
        self._spawn(self._run(admission.state.scope))

    async def _run(self, scope: Scope) -> None:
        waiting = self._waiting[scope]
        try:
            while waiting:
                batch, waiting[:MAX_MARKS] = waiting[:MAX_MARKS], []
                await self._mark(batch)
        finally:
            del self._waiting[scope]
            for admission, finished in waiting:  # the guard ends
                self._close(admission)
                finished.cancel()

    async def _mark(self, batch: list[Handled]) -> None:
        error: BaseException | None = None
        try:
            await self._write([admission for admission, _ in batch])
        except Exception as failure:
            error = failure
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            for admission, finished in batch:
                self._close(admission)
                settle(finished, error)


def settle(finished: asyncio.Future[None], error: BaseException | None) -> None:
    """Set the outcome of a future, unless it is cancelled."""
    if finished.done():
        return
    if error is None:
        finished.set_result(None)
    elif isinstance(error, asyncio.CancelledError):
        finished.cancel()
    else:
        finished.set_exception(error)
