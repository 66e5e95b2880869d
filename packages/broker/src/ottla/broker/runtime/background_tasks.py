"""The broker's background work: named tasks; metrics show whether each runs, and when it last began."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.broker.metrics import show_last_run, show_running

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Clock

_log = logging.getLogger(__name__)

Work = Callable[[], Awaitable[object] | object]


class BackgroundTasks:
    """Owns tasks while it is entered; leaving cancels them and waits until they have ended."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        await self._group.__aexit__(None, None, None)

    def cancel(self) -> None:
        """Ask every task to end."""
        for task in list(self._tasks):
            task.cancel()

    def lasting(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` that lasts until it is cancelled; metrics show whether it runs."""
        task = self.spawn(work, name)
        show_running(self._metrics, task, name)
        return task

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work`; a failure is logged and does not affect the rest of the broker."""
        task = self._group.create_task(self._guarded(work, name), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        # A task that is cancelled before its first step never awaits `work`, and Python warns about that.
        task.add_done_callback(lambda _: work.close())
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    async def _guarded(self, work: Coroutine[Any, Any, None], name: str) -> None:
        try:
            await work
        except Exception:
            _log.exception("task failed", extra={"task": name})

    def every(self, name: str, interval_ms: float, work: Work) -> asyncio.Task[None]:
        """Call `work` repeatedly, `interval_ms` after it last ended; a failure is logged."""
        return self.lasting(self._repeat(name, interval_ms, work), name)

    async def _repeat(self, name: str, interval_ms: float, work: Work) -> None:
        mark_begun = show_last_run(self._metrics, self._clock.monotonic_ms, name)
        while True:
            await asyncio.sleep(interval_ms / 1000)
            mark_begun()
            try:
                result = work()
                if inspect.isawaitable(result):
                    await result
            except Exception:
                _log.exception("periodic task failed", extra={"task": name})
