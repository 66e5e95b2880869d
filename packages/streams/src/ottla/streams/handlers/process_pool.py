"""Processes for handlers that need the processor: each is apart from the others, and is killed on time-out.

Every worker is an executor of `concurrent.futures` with one process. A process that dies breaks its executor
only, while an executor or pool of many processes breaks as a whole (docs/design/dependencies.md).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from ottla.streams.environment import environment
from ottla.streams.errors import WorkerProcessDied, WorkerProcessesNotStarted
from ottla.streams.handlers.worker_process import begin, report_pid

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
START_PAUSE_S: Final = 1.0
KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


class ProcessPool:
    """Runs calls on `max_processes` processes, which are started on entry and kept.

    `initialize(*arguments)` runs first in each process; both must be picklable. A call whose caller is
    cancelled is ended by killing its process. A process that died is replaced at once, beside the calls.
    """

    def __init__(
        self, max_processes: int, initialize: Callable[..., None], arguments: tuple[Any, ...] = ()
    ) -> None:
        self._workers = [_Worker(initialize, arguments) for _ in range(max_processes)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._dead: asyncio.Queue[_Worker] = asyncio.Queue()
        self._tasks: asyncio.TaskGroup | None = None
        self._replacing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as starting:
                for worker in self._workers:
                    starting.create_task(worker.start())
        except BaseExceptionGroup as group:
            self._kill_all()
            if isinstance(group.exceptions[0], BrokenProcessPool):
                raise WorkerProcessesNotStarted from None
            raise group.exceptions[0] from None
        for worker in self._workers:
            self._idle.put_nowait(worker)
        self._tasks = tasks = asyncio.TaskGroup()
        await tasks.__aenter__()
        self._replacing = tasks.create_task(self._replace_dead(), name="worker process replacement")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        assert self._replacing is not None
        self._replacing.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._kill_all()

    async def run(self, function: Callable[..., Any], *arguments: Any, on_start: Callable[[], None]) -> Any:
        """Call a function in a process once one is free; return or raise what it does.

        `on_start` is called when there is one. Raises WorkerProcessDied when the process ended meanwhile.
        """
        while True:
            worker = await self._idle.get()
            on_start()
            try:
                return await worker.run(function, *arguments)
            except _DiedIdle:
                continue  # the call was never given to it
            finally:
                (self._idle if worker.is_alive else self._dead).put_nowait(worker)

    def pids(self) -> list[int]:
        """Return the processes' ids."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def _replace_dead(self) -> None:
        while True:
            worker = await self._dead.get()
            try:
                await worker.start()
            except (OSError, TimeoutError, BrokenProcessPool) as error:
                log.warning(
                    "a worker process does not start", extra={"reason": f"{type(error).__name__}: {error}"}
                )
                await asyncio.sleep(START_PAUSE_S)
                self._dead.put_nowait(worker)
            else:
                self._idle.put_nowait(worker)

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()


class _DiedIdle(Exception):
    """A process had died before it was given a call."""


class _Worker:
    """One process at a time."""

    def __init__(self, initialize: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.pid: int | None = None
        self._initialize = initialize
        self._arguments = arguments
        self._executor: ProcessPoolExecutor | None = None

    @property
    def is_alive(self) -> bool:
        """Whether there is a process, as far as is known."""
        return self._executor is not None

    async def start(self) -> None:
        """Start the process, which takes tenths of a second, on a thread. Raises what its start raises."""
        spawning = multiprocessing.get_context("spawn")
        self._executor = executor = ProcessPoolExecutor(1, spawning, initializer=begin)
        try:
            with environment().waiting_outside():
                async with asyncio.timeout(START_TIMEOUT_S):
                    started = await asyncio.to_thread(
                        executor.submit, report_pid, self._initialize, self._arguments
                    )
                    self.pid = await asyncio.wrap_future(started)
        except BaseException:
            self.kill()
            raise

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the process; without a process afterwards if it died or was killed."""
        assert self._executor is not None
        try:
            called = self._executor.submit(function, *arguments)
        except BrokenProcessPool as error:
            self.kill()
            raise _DiedIdle from error
        try:
            with environment().waiting_outside():
                return await asyncio.wrap_future(called)
        except BrokenProcessPool as error:
            pid = self.pid or 0
            self.kill()
            raise WorkerProcessDied(pid) from error
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process at once."""
        executor, self._executor, pid, self.pid = self._executor, None, self.pid, None
        if executor is None:
            return
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, KILL)
        executor.shutdown(wait=False, cancel_futures=True)
