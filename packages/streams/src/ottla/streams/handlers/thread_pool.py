"""Threads for handlers that are plain functions: bounded in number, and replaced when one hangs.

The executor of `concurrent.futures` joins its threads when the interpreter ends, so a handler that hangs
would keep the process from ending, and a thread that hangs would take a place for good. These threads are
daemons, and a thread whose caller stopped waiting is counted as lost and replaced, up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final

from ottla.streams.environment import environment
from ottla.streams.errors import ThreadsExhausted

log = logging.getLogger(__name__)

DEFAULT_MAX_THREADS: Final = 32


class ThreadPool:
    """Runs functions on up to `max_threads` threads, which start when they are needed.

    A function cannot be stopped. When its caller is cancelled, by a time-out for instance, it goes on; its
    thread is lost until it returns, and another may take its place. With `max_threads` lost threads every
    call raises ThreadsExhausted until one of them has returned, so there are never more than twice as many.
    """

    def __init__(self, name: str, max_threads: int = DEFAULT_MAX_THREADS) -> None:
        self.lost_threads = 0
        """The number of threads whose function runs on after its call was given up."""
        self._name = name
        self._max_threads = max_threads
        self._free = asyncio.Semaphore(max_threads)
        self._idle: list[_Thread] = []

    async def run(self, call: Callable[[], Any]) -> Any:
        """Run a function with a copy of the caller's context variables; return what it returns.

        Raises what it raises, BaseException included, and ThreadsExhausted.
        """
        async with self._free:
            if self.lost_threads >= self._max_threads:
                raise ThreadsExhausted(self._name, self.lost_threads)
            thread = self._idle.pop() if self._idle else _Thread(self._name)
            job = _Job(call, asyncio.get_running_loop().create_future())
            thread.jobs.put(job)
            try:
                with environment().waiting_outside():
                    await job.ended
            except asyncio.CancelledError:
                if job.has_ended or job.claim():  # between its end and this task's turn, or before its begin
                    self._idle.append(thread)
                else:
                    self._lose(thread, job)
                raise
            self._idle.append(thread)
            return job.result()

    def close(self) -> None:
        """End the threads that are idle. Lost ones end when their function returns, or with the process."""
        while self._idle:
            self._idle.pop().jobs.put(None)

    def _lose(self, thread: _Thread, job: _Job) -> None:
        thread.jobs.put(None)
        self.lost_threads += 1
        job.on_late_end = self._found
        log.warning(
            "a thread goes on after its call was given up",
            extra={
                "handler": self._name, "lost_threads": self.lost_threads, "max_threads": self._max_threads,
            },
        )  # fmt: skip

    def _found(self) -> None:
        self.lost_threads -= 1


class _Job:
    """One call: `ended` is done when the function has ended, cancelled when its caller was."""

    def __init__(self, call: Callable[[], Any], ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.has_ended = False
        self.on_late_end: Callable[[], None] = _nothing
        self._begin = threading.Lock()
        self._context = copy_context()
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None

    def claim(self) -> bool:
        """Return true to the first that asks: the thread, or a caller that gives the call up before it began.

        On a busy machine a thread may get the processor long after its job. By then its partition may have
        another owner, which handles the same records.
        """
        return self._begin.acquire(blocking=False)

    def run(self) -> None:
        """Call the function, unless the call was given up; on the thread."""
        if not self.claim():
            return
        try:
            self._value = self._context.run(self._call)
        except BaseException as error:
            self._error = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.ended.get_loop().call_soon_threadsafe(self._end)

    def result(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        if self._error is None:
            return self._value
        try:
            raise self._error
        finally:
            self._error = None  # its traceback refers to this frame

    def _end(self) -> None:
        self.has_ended = True
        if self.ended.done():
            self.on_late_end()
        else:
            self.ended.set_result(None)


class _Thread:
    """A daemon thread that runs jobs until it is given None."""

    def __init__(self, name: str) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        threading.Thread(target=self._run, name=f"handler {name}", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            job.run()
            del job  # or an idle thread would keep the last record


def _nothing() -> None:
    """Do nothing."""
