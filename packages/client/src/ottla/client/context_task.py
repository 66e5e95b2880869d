"""`start` and `stop` for objects that live in an `async with` block: the block is kept open on a task."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any


class ContextTask:
    """Holds one block open from `start` to `stop`.

    A task group must be left by the task that entered it, so that task is this object's own. When the block
    dies by itself, `stop` raises what it died of.
    """

    def __init__(self, block: AbstractAsyncContextManager[Any]) -> None:
        self._block = block
        self._ending = asyncio.Event()
        self._entered: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Enter the block. Raises what entering it raises."""
        loop = asyncio.get_running_loop()
        self._entered = loop.create_future()
        self._task = loop.create_task(self._hold(), name=f"{type(self._block).__name__}.start")
        try:
            await asyncio.shield(self._entered)
        except asyncio.CancelledError:
            self._entered.cancel()  # nobody asks any more how entering the block went
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        except BaseException:
            await asyncio.wait([self._task])
            raise

    async def stop(self) -> None:
        """Leave the block, once; wait until it is left."""
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
