"""An event loop with virtual time: where it has nothing to do, it moves its clock instead of sleeping.

Time passes only as far as `limit_s`. What waits for a thread or a process is waited for really, and time
stands still meanwhile; so do files and sockets that are ready, but nothing waits for them.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Final

from ottla.streams.errors import StreamsError


class NeverSettles(StreamsError):
    """Code runs on and on without waiting for anything, or waits for an event that never happens."""


START_S: Final = 1_000.0
MAX_TURNS: Final = 1_000_000
"""The most turns of the loop in which no time passes."""

TaskStarted = Callable[[asyncio.Task[Any], Context], None]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs until nothing can be done before `limit_s`, and then stops.

    `patience_s` is how long, in real time, threads and processes are waited for; after that time passes
    though they run. `on_task` is called with each task and its context.
    """

    def __init__(
        self,
        *,
        patience_s: float,
        on_task: TaskStarted = lambda task, context: None,
        max_turns: int = MAX_TURNS,
    ) -> None:
        self._virtual = _VirtualSelector(self, patience_s, max_turns)
        super().__init__(self._virtual)
        self._on_task = on_task
        self.now_s = START_S
        self.limit_s = START_S
        self.until: Callable[[], bool] | None = None
        """Stops the loop as soon as it is true and nothing can be done at that time."""

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_s

    def drive(self, limit_s: float, until: Callable[[], bool] | None = None) -> None:
        """Run until nothing is left to do before a time, which it is then; or until a condition is true.

        Raises NeverSettles for code that never waits.
        """
        self.limit_s, self.until = limit_s, until
        self._virtual.turns = 0
        try:
            self.run_forever()
        finally:
            self.limit_s, self.until = self.now_s, None

    def finish(self, work: Any) -> None:
        """Run a coroutine of the loop's own end, which waits for threads."""
        with self.waiting_outside():
            self.limit_s = math.inf
            self.run_until_complete(work)

    @contextmanager
    def waiting_outside(self) -> Iterator[None]:
        """Stop time within the block, while a thread or a process is waited for."""
        self._virtual.outside += 1
        try:
            yield
        finally:
            self._virtual.outside -= 1
            self._virtual.given_up = min(self._virtual.given_up, self._virtual.outside)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task, and report it to `on_task`."""
        task = super().create_task(coro, **options)
        context = options.get("context")
        self._on_task(task, copy_context() if context is None else context)  # an empty one is false
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """Run a function on a thread; time stands still meanwhile."""
        waiting = self.waiting_outside()
        waiting.__enter__()
        future: asyncio.Future[Any] = super().run_in_executor(executor, function, *arguments)
        future.add_done_callback(lambda _: waiting.__exit__(None, None, None))
        return future

    def pass_time(self, timeout_s: float | None) -> None:
        """Nothing can be done now: move the clock to the next timer, or stop at the limit."""
        if self.until is not None and self.until():
            self.stop()
            return
        next_s = math.inf if timeout_s is None else self.now_s + timeout_s
        if next_s <= self.limit_s and next_s < math.inf:
            self.now_s = next_s
            return
        if self.limit_s < math.inf:
            self.now_s = max(self.now_s, self.limit_s)
        self.stop()


class _VirtualSelector(selectors.DefaultSelector):
    """Waits for nothing but threads and processes."""

    def __init__(self, loop: VirtualLoop, patience_s: float, max_turns: int) -> None:
        super().__init__()
        self._loop = loop
        self._patience_s = patience_s
        self._max_turns = max_turns
        self.turns = 0
        self.outside = 0
        self.given_up = 0
        """How many of those outside have not ended in time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._count()
            return ready
        if self.outside > self.given_up:
            if ready := super().select(self._patience_s):
                return ready
            self.given_up = self.outside
        self.turns = 0
        self._loop.pass_time(timeout)
        return []

    def _count(self) -> None:
        self.turns += 1
        if self.turns > self._max_turns:
            self.turns = 0
            raise NeverSettles(
                f"no time passed in {self._max_turns:,} turns of the loop: a task runs on without waiting"
            )
