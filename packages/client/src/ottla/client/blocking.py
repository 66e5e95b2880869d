"""Blocking calls of asynchronous clients: an event loop on a thread of its own.

Any number of threads may call. Waiting is interruptible: Ctrl-C cancels the call and is raised in the calling
thread. A forked process does not have the thread; calls there raise `Forked` instead of hanging.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from ottla.client.errors import ClientError, NotRunning

__all__ = ["EXIT_TIMEOUT_S", "Call", "Forked", "LoopThread", "NotRunning"]

T = TypeVar("T")
C = TypeVar("C")

EXIT_TIMEOUT_S = 10.0
"""How long the interpreter's exit waits for a client that was not closed."""


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


# os.getpid at every call would cost more than the call.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Forked(ClientError):
    """The client belongs to the process that this one was forked from."""

    def __init__(self, owner_pid: int) -> None:
        super().__init__(
            f"this client was started by process {owner_pid}, and this is process {os.getpid()}: threads do "
            f"not survive a fork; start clients after forking, in each worker"
        )


class LoopThread(Generic[C]):
    """Keeps an asynchronous client open on the event loop of a thread of its own.

    `make` makes the client, on that thread; the thread enters it at its start and leaves it in `close`.
    Calls before and after raise `closed`.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[C]],
        *,
        name: str,
        closed: type[NotRunning] = NotRunning,
    ) -> None:
        self._make = make
        self._name = name
        self._closed = closed
        self._pid = os.getpid()
        self._forks = _forks
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping: asyncio.Event | None = None
        self._is_closing = False
        self._main_task: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._open: concurrent.futures.Future[C] = concurrent.futures.Future()
        self._failure: BaseException | None = None
        self._calls: set[Call[Any]] = set()

    def start(self) -> C:
        """Start the thread, and return the client once it is open. Raises the error of opening it."""
        with self._starting:
            if self._thread is None:
                self._pid, self._forks = os.getpid(), _forks
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                _close_at_exit(self)
        try:
            return self._open.result()
        except BaseException:
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        """Whether calls can be made."""
        return self._loop is not None and self._failure is None and self._forks == _forks

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on that thread, which must not wait for itself."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop, and return its result.

        Raises TimeoutError after `timeout_s`, and the coroutine's error. Raises RuntimeError in a callback on
        the client's own thread, which would wait for itself.
        """
        if self.is_here:
            raise RuntimeError(
                "a callback on the client's own thread must not wait for it; hand the work to another thread"
            )
        return self.submit(make).result(timeout_s)

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Call[T]:
        """Run a coroutine on the loop, without waiting for it."""
        loop = self.loop
        call: Call[T] = Call(loop, self._calls.discard, self._closed)
        self._calls.add(call)
        self.post(self._begin, call, make)
        return call

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop soon. Raises NotRunning."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop was closed meanwhile
            raise self._refusal() from None

    def check(self) -> None:
        """Raise the error that a call would raise now: Forked or NotRunning."""
        if self._forks != _forks or self._loop is None:
            _ = self.loop

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop. Raises Forked in a forked process, NotRunning without a loop."""
        if self._forks != _forks:
            raise Forked(self._pid)
        if self._loop is None:
            raise self._refusal()
        return self._loop

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the client, and join the thread. Raises the error of leaving it, and TimeoutError."""
        if self._forks != _forks or self.is_here:
            return
        with self._starting:  # without the lock the thread might exist unstarted, and could not be joined
            thread = self._thread
        if thread is None:
            return
        self._is_closing = True
        self._end(cancel=not self._open.done())
        thread.join(timeout_s)
        if thread.is_alive():
            self._end(cancel=True)
            raise TimeoutError(f"{self._name} did not close within {timeout_s:g} s")
        failure, self._failure = self._failure, None
        # Only `_end` cancels: for a close that timed out, or one during the start.
        is_cancelled = isinstance(failure, asyncio.CancelledError)
        if failure is not None and not is_cancelled and self._open.exception() is None:
            raise failure

    def _end(self, *, cancel: bool) -> None:
        """Ask the thread to leave the client; `cancel` interrupts it in any state."""
        if self._main_task is None:
            return
        loop, task = self._main_task
        with suppress(RuntimeError):  # the loop is closed: the thread ended by itself
            if cancel or self._stopping is None:
                loop.call_soon_threadsafe(task.cancel)
            else:
                loop.call_soon_threadsafe(self._stopping.set)

    def _refusal(self) -> ClientError:
        if self._failure is not None:
            return self._closed(f"{self._name} ended: {self._failure}")
        return self._closed(f"{self._name} is not running; use it inside `with`, or call start()")

    def _begin(self, call: Call[T], make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin a call, unless the thread is closing: the call may have been submitted just before that.

        `_main` clears `_loop` and cancels all calls in one iteration of the loop. A call that began after it
        would never be cancelled, and one that waits for ever, for a record say, would keep the client open.
        """
        if self._loop is None:
            call.abandon()
        else:
            call.begin(make, self._spawn)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(coroutine)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = _single(error)
        finally:
            self._loop = None
            for call in list(self._calls):  # submitted, and never begun
                call.abandon()
            if not self._open.done():
                self._open.set_exception(self._failure or self._closed(f"{self._name} did not start"))

    async def _main(self) -> None:
        self._stopping = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._main_task = (asyncio.get_running_loop(), task)
        if self._is_closing:
            return  # `close` came before there was a task to stop: nothing else would end this one
        async with self._make() as client, asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._loop = asyncio.get_running_loop()
            self._open.set_result(client)
            await self._stopping.wait()
            # All calls end before the client is left; those that wait for ever are cancelled.
            self._loop, loop = None, self._loop
            for task in asyncio.all_tasks(loop):
                if task.get_name() == Call.TASK_NAME:
                    task.cancel()


class Call(Generic[T]):
    """A coroutine that runs on another thread's loop."""

    TASK_NAME = "ottla-call"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[Call[T]], object],
        closed: type[NotRunning] = NotRunning,
    ) -> None:
        self._loop = loop
        self._closed = closed
        self._result: concurrent.futures.Future[T] = concurrent.futures.Future()
        # A result may have megabytes. Were the future to refer to the call, which refers to the future, only
        # the collector would free it, which counts objects and not their bytes.
        this = weakref.ref(self)
        self._result.add_done_callback(lambda _: None if (call := this()) is None else on_end(call))
        self._task: asyncio.Task[None] | None = None
        self._coroutine: Coroutine[Any, Any, T] | None = None
        self._is_cancelled = False

    def begin(
        self,
        make: Callable[[], Coroutine[Any, Any, T]],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Start it, on the loop."""
        if self._is_cancelled:
            self.abandon()
            return
        try:
            self._coroutine = make()
            self._task = spawn(self._finish(self._coroutine))
        except BaseException as error:
            self._result.set_exception(error)
            return
        self._task.set_name(self.TASK_NAME)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs nothing of `_finish`.
        assert self._coroutine is not None
        self._coroutine.close()
        self.abandon()

    def abandon(self) -> None:
        """Fail the call, unless it is done: nothing will complete it."""
        with suppress(concurrent.futures.InvalidStateError):
            self._result.set_exception(self._closed("the client was closed, or the call cancelled"))

    async def _finish(self, coroutine: Coroutine[Any, Any, T]) -> None:
        try:
            result = await coroutine
        except asyncio.CancelledError:
            self.abandon()
            raise
        except BaseException as error:
            self._result.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._result.set_result(result)

    def done(self) -> bool:
        """Return whether the call is done."""
        return self._result.done()

    def result(self, timeout_s: float | None = None, *, cancels: bool = True) -> T:
        """Wait for the result; a wait that ends by timeout or Ctrl-C cancels the call if `cancels`."""
        try:
            return self._result.result(timeout_s)
        except BaseException:
            if cancels and not self._result.done():
                self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the coroutine."""
        self._is_cancelled = True
        with suppress(RuntimeError):  # the loop is closed, and every call done
            self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()


_unclosed: weakref.WeakSet[LoopThread[Any]] = weakref.WeakSet()


def _close_at_exit(thread: LoopThread[Any]) -> None:
    _unclosed.add(thread)


@atexit.register
def _close_all() -> None:
    """Close clients that are still open: a producer sends its waiting records before the interpreter ends."""
    for thread in list(_unclosed):
        with suppress(Exception):
            thread.close(EXIT_TIMEOUT_S)


def _single(error: BaseException) -> BaseException:
    """Unwrap an exception group of one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
