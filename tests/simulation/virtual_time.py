"""Virtual time: one event loop for each process of the simulation, and the one that runs them all.

A process that is paused keeps its callbacks for later, one that is killed never runs again: no `finally` of
it has an effect. Work for threads is done at once, on the loop, and its result arrives after a while.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

THREAD_WORK_S: Final = (0.0005, 0.01)
"""How long work on a thread takes, at least and at most."""


_EventLoop: Any = asyncio.AbstractEventLoop
"""Most of its methods are for sockets and subprocesses, which a simulated process does not have."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address: a TaskGroup cancels in that order."""

    def __init__(self, number: int, coroutine: Any, **named: Any) -> None:
        self._number = number
        super().__init__(coroutine, **named)

    def __hash__(self) -> int:
        return self._number


class Handle:
    """A callback of a loop, as `asyncio.TimerHandle`, at a third of its cost."""

    __slots__ = ("_arguments", "_callback", "_cancelled", "_context", "_loop")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        loop: ProcessLoop,
        context: Context | None = None,
    ) -> None:
        self._callback = callback
        self._arguments = arguments
        self._loop = loop
        self._context = context if context is not None else copy_context()
        self._cancelled = False

    def cancel(self) -> None:
        """Do not call it."""
        self._cancelled = True
        self._callback, self._arguments = _nothing, ()

    def cancelled(self) -> bool:
        """Whether it is not called any more."""
        return self._cancelled

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._arguments)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": f"in {self._callback!r}", "exception": error})


def _nothing() -> None:
    pass


class World:
    """The clock, the chance and the timers of a simulation."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.random = Random(seed)
        self.events = 0
        self.failures: list[str] = []
        """Defects: callbacks that failed, and failures that the product logs with a traceback."""
        self.expired: set[ProcessLoop] = set()
        """Processes that were paused until their sessions expired, and have no other one yet."""
        self.look_now = False
        """Whether the invariants are to be checked before anything else happens."""
        self._timers: list[tuple[float, int, Handle, ProcessLoop]] = []
        self._numbers = 0
        self.tasks = 0
        self.loops: list[ProcessLoop] = []
        self.graves: list[ProcessLoop] = []

    def now_ms(self) -> int:
        """The time of day, alike for brokers and ZooKeeper."""
        return 1_000_000 + int(self.now_s * 1000)

    def loop(self, name: str) -> ProcessLoop:
        """Return the event loop of a new process."""
        loop = ProcessLoop(self, name)
        self.loops.append(loop)
        return loop

    def close(self) -> None:
        """End every process, and forget its tasks."""
        for loop in self.loops:
            if not loop.is_dead:
                loop.kill()
            for task in loop.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            loop.tasks.clear()
        self._timers.clear()

    def add(self, when_s: float, handle: Handle, loop: ProcessLoop) -> None:
        """Run a callback at a time; of equal times the one that was added first."""
        self._numbers += 1
        heapq.heappush(self._timers, (when_s, self._numbers, handle, loop))

    def run_until(self, done: Callable[[], bool], deadline_s: float) -> bool:
        """Run everything until `done`, or until nothing is left or the time is over; return whether it is."""
        timers, outer = self._timers, events._get_running_loop()
        try:
            while timers and not done():
                when_s, _, handle, loop = timers[0]
                if when_s > deadline_s:
                    self.now_s = deadline_s
                    break
                heapq.heappop(timers)
                if handle._cancelled or loop.is_dead:
                    continue
                self.now_s = max(self.now_s, when_s)
                loop.step(handle)
        finally:
            events._set_running_loop(outer)
        return done()


class ProcessLoop(_EventLoop):  # type: ignore[misc]  # its methods take what asyncio gives them
    """The event loop of one simulated process."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.paused = False
        self.paused_since_s = 0.0
        self._ready: deque[Handle] = deque()
        self._kept: list[Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.network: Any = None
        """The network that connections of this process are made in."""

    # ---- the world's side

    def step(self, handle: Handle) -> None:
        """Run one callback, and all that it makes ready."""
        if self.paused:
            self._kept.append(handle)
            return
        self.world.events += 1
        events._set_running_loop(self)
        handle._run()
        ready = self._ready
        while ready and not self.is_dead and not self.paused:
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self.paused, self.paused_since_s = True, self.world.now_s

    def resume(self) -> None:
        """Run on, with everything that became due meanwhile."""
        self.paused = False
        kept, self._kept = self._kept, []
        for handle in [*self._ready, *kept]:
            self.world.add(self.world.now_s, handle, self)
        self._ready.clear()

    def kill(self) -> None:
        """Run nothing any more."""
        self.is_dead = True
        self._ready.clear()
        self._kept.clear()
        # Kept until the end: what a coroutine does when it is collected must not happen in between.
        self.world.graves.append(self)

    def post(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call something in this process after a delay; for code that runs outside of it."""
        self.world.add(self.world.now_s + delay_s, Handle(callback, arguments, self), self)

    # ---- asyncio's side

    def time(self) -> float:
        return self.world.now_s

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        if events._get_running_loop() is self:
            self._ready.append(handle)
        else:
            self.world.add(self.world.now_s, handle, self)
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        self.world.add(when, handle, self)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self.world.now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        self.world.tasks += 1
        task = _Task(self.world.tasks, coro, loop=self, name=name, context=context)
        self.tasks.append(task)
        if len(self.tasks) > 1000:
            self.tasks = [one for one in self.tasks if not one.done()]
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do the work now, and tell its outcome later: no thread runs, and the order is the seed's."""
        future: asyncio.Future[Any] = self.create_future()
        least_s, most_s = THREAD_WORK_S
        self.call_later(self.world.random.uniform(least_s, most_s), _work, future, func, args)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(None, None, None, "", (host, port))]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.world.failures.append(f"{self.name}: {context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def set_default_executor(self, executor: Any) -> None:
        pass


def _work(future: asyncio.Future[Any], func: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        result = func(*arguments)
    except BaseException as error:
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)
