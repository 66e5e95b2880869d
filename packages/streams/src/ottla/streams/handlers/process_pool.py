"""Processes for handlers that need the processor: each is apart from the others, and is killed on time-out.

Every worker is an executor of `concurrent.futures` with one process. A process that dies breaks its executor
only, while an executor or pool of many processes breaks as a whole (docs/design/dependencies.md).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from ottla.streams.errors import WorkerProcessDied
from ottla.streams.handlers.worker_process import begin, report_pid

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 5.0
KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)


class ProcessPool:
    """Runs calls on `max_processes` processes, which are started on entry and kept.

    `initialize(*arguments)` runs first in each process; both must be picklable. A call whose caller is
    cancelled is ended by killing its process. A process that died is replaced when it is needed again.
    """

    def __init__(
        self, max_processes: int, initialize: Callable[..., None], arguments: tuple[Any, ...] = ()
    ) -> None:
        self._workers = [_Worker(initialize, arguments) for _ in range(max_processes)]
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in self._workers:
                    tasks.create_task(each.start())
        except BaseExceptionGroup as group:
            self._kill_all()
            raise group.exceptions[0] from None
        for each in self._workers:
            self._idle.put_nowait(each)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill_all()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a process once one is free; return or raise what it does.

        Raises WorkerProcessDied when the process ended meanwhile.
        """
        worker = await self._idle.get()
        try:
            return await worker.run(function, *arguments)
        finally:
            self._idle.put_nowait(worker)

    def pids(self) -> list[int]:
        """Return the processes' ids."""
        return [each.pid for each in self._workers if each.pid is not None]

    def _kill_all(self) -> None:
        for each in self._workers:
            each.kill()


class _Worker:
    """One process at a time."""

    def __init__(self, initialize: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.pid: int | None = None
        self._initialize = initialize
        self._arguments = arguments
        self._executor: ProcessPoolExecutor | None = None

    async def start(self) -> ProcessPoolExecutor:
        """Start the process, which takes tenths of a second, on a thread. Raises what its start raises."""
        self._executor = executor = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=begin
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                started = await asyncio.to_thread(
                    executor.submit, report_pid, self._initialize, self._arguments
                )
                self.pid = await asyncio.wrap_future(started)
        except BaseException:
            self.kill()
            raise
        return executor

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        executor = self._executor or await self.start()
        try:
            called = executor.submit(function, *arguments)
        except BrokenProcessPool:  # it died while it was idle: nothing was lost
            self.kill()
            called = (await self.start()).submit(function, *arguments)
        try:
            return await asyncio.wrap_future(called)
        except BrokenProcessPool as error:
            pid = self.pid or 0
            self.kill()
            raise WorkerProcessDied(pid) from error
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """End the process at once; the next call starts another."""
        executor, self._executor, pid, self.pid = self._executor, None, self.pid, None
        if executor is None:
            return
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, KILL)
        executor.shutdown(wait=False, cancel_futures=True)
