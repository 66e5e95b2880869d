"""`start` and `stop` for an async context manager: a task of its own keeps its `async with` block open."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any


class ContextTask:
    """Keeps one async context manager entered from `start` to `stop`.

    A task group must be left by the task that entered it, so a task of this object does both. When the block
    fails before `stop`, `stop` raises its error.
    """

    def __init__(self, block: AbstractAsyncContextManager[Any]) -> None:
        self._block = block
        self._ending = asyncio.Event()
        self._entered: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Enter the context manager. Raises the error of entering it."""
        loop = asyncio.get_running_loop()
        self._entered = loop.create_future()
        self._task = loop.create_task(self._hold(), name=f"{type(self._block).__name__}.start")
        try:
            await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            self._entered.cancel()  # it is not awaited any more
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        except BaseException:
            await asyncio.wait([self._task])
            raise

    async def stop(self) -> None:
        """Leave the context manager, once, and wait until it is left."""
        task, self._task = self._task, None
        if task is not None:
            self._ending.set()
            await task

    async def _hold(self) -> None:
        assert self._entered is not None
        try:
            async with self._block:
                if self._entered.cancelled():
                    return
                self._entered.set_result(None)
                await self._ending.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)
