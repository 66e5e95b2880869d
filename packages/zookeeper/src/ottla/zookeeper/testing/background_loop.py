"""Run an async context manager on a loop of its own, for tests that share a server across loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Background(Generic[T]):
    """`with Background(RealZooKeeper(path)) as server:` runs it on a thread until the block ends.

    `call` and `run` execute on the server's loop and wait for the result, at most `timeout_s`.
    """

    def __init__(self, context: AbstractAsyncContextManager[T], timeout_s: float = 60.0) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._entered: Future[T] = Future()
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._main, daemon=True, name="ottla-background")

    @property
    def value(self) -> T:
        """The value of the entered context manager."""
        return self._entered.result(self._timeout_s)

    def call(self, function: Callable[[], R]) -> R:
        """Call a plain function on the server's loop."""

        async def calling() -> R:
            return function()

        return self.run(calling())

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(self._timeout_s)

    def __enter__(self) -> Background[T]:
        self._thread.start()
        self._entered.result(self._timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(self._timeout_s)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._hold())

    async def _hold(self) -> None:
        try:
            async with self._context as value:
                self._entered.set_result(value)
                await self._leave.wait()
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)
