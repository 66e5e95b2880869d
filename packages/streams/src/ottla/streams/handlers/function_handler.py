"""A handler made of a user's function: typed arguments, and the place where it runs."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeGuard

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.errors import BatchUndecodable, InvalidHandler, RecordUndecodable
from ottla.streams.handlers.arguments import (
    Arguments,
    Function,
    ValueFormat,
    arguments_of,
    handler_name,
    unwrapped,
)
from ottla.streams.handlers.context import Context, Sender
from ottla.streams.handlers.process_pool import ProcessPool
from ottla.streams.handlers.thread_pool import DEFAULT_MAX_THREADS, ThreadPool
from ottla.streams.handlers.worker_process import data_of, handle_in_worker, load_handler, raise_or_emitted
from ottla.streams.seams import Handler, Work

RunOn = Literal["auto", "threads", "processes"]
Run = Callable[[Work, Sequence[ConsumerRecord], Context], Awaitable[Sequence[ProducerRecord]]]
"""Runs the function for records; returns what it emitted."""

NOT_STARTED_MS: Final = 2**62
"""The start of work that waits for a process, which may have to be started first: no time-out reaches it."""
_NO_CONTEXT: Final = Context((), 0, None)
"""Stands for the context in calls of functions that take none."""


class Undecodable(Protocol):
    """Takes the records of a batch that cannot be decoded."""

    async def __call__(self, work: Work, errors: Sequence[RecordUndecodable], /) -> None:
        """Return when they are dealt with, so that the function is called with the others."""


async def reject_batch(work: Work, errors: Sequence[RecordUndecodable], /) -> None:
    """Raise the first error."""
    raise errors[0]


class FunctionHandler:
    """Implements `Handler` by a user's function. Threads and processes live inside `async with`.

    Async functions run on the loop. Plain functions run on threads, up to `max_threads` at once, or with
    `run_on="processes"` on `max_processes` processes. Raises InvalidHandler for a function that cannot be
    called so, before any record.
    """

    def __init__(
        self,
        function: Function,
        sender: Sender,
        *,
        run_on: RunOn = "auto",
        value_format: ValueFormat = "auto",
        max_threads: int = DEFAULT_MAX_THREADS,
        max_processes: int = 1,
        on_undecodable: Undecodable = reject_batch,
    ) -> None:
        self.name: Final = handler_name(function)
        self.arguments: Final = arguments_of(function, value_format)
        self.max_calls: int | None = None
        """The number of threads or processes for it; None for an async function."""
        self._function = function
        self._sender = sender
        self._on_undecodable = on_undecodable
        self._threads: ThreadPool | None = None
        self._processes: ProcessPool | None = None
        self.is_async: Final = is_async_function(function)
        """Whether the function runs on the loop."""
        if run_on == "processes":
            check_importable(function, self.name, is_async=self.is_async)
            loading = (function, value_format)
            self.max_calls = max_processes
            self._processes = ProcessPool(max_processes, load_handler, loading)
            self._run: Run = self._on_process
        elif self.is_async and run_on == "auto":
            self._run = _OnLoop(self.arguments, function)
        else:
            if self.is_async:
                raise InvalidHandler(
                    f"handler {self.name} is async, so it runs on the loop: leave out run_on"
                )
            self.max_calls = max_threads
            self._threads = ThreadPool(self.name, max_threads)
            self._call = self.arguments.call_of(function)
            self._run = self._on_thread
        is_simple = self.is_async and not self.arguments.is_batch and not self.arguments.takes_context
        self._simple_call = self.arguments.call_of(function) if is_simple else None

    async def __aenter__(self) -> Self:
        if self._processes is not None:
            check_picklable(self._function, self.name)
            await self._processes.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            await self._processes.__aexit__(kind, error, trace)

    @property
    def lost_threads(self) -> int:
        """The number of threads that go on after their call was given up."""
        return 0 if self._threads is None else self._threads.lost_threads

    def pids(self) -> list[int]:
        """Return the ids of the worker processes."""
        return [] if self._processes is None else self._processes.pids()

    async def __call__(self, work: Work) -> None:
        """Call the function with the records of a work, then send what it emitted."""
        if self._simple_call is not None:  # a context would cost more than the call
            await self._simple_call(work.records, _NO_CONTEXT)
            return
        send = partial(self._sender.send, work) if self.is_async else None
        context = Context(work.records, work.attempt, send)
        try:
            emitted = await self._run(work, work.records, context)
        except BatchUndecodable as error:
            emitted = await self._run_without(work, context, error.errors)
        for record in emitted:
            await self._sender.send(work, record)

    async def _run_without(
        self, work: Work, context: Context, errors: Sequence[RecordUndecodable]
    ) -> Sequence[ProducerRecord]:
        """Run the function for the records of a batch that can be decoded."""
        await self._on_undecodable(work, errors)
        undecodable = {error.offset for error in errors}
        rest = [record for record in work.records if record.offset not in undecodable]
        return await self._run(work, rest, context.of_part(rest)) if rest else ()

    async def _on_thread(
        self, work: Work, records: Sequence[ConsumerRecord], context: Context
    ) -> Sequence[ProducerRecord]:
        assert self._threads is not None
        result = await self._threads.run(partial(self._call, records, context))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidHandler(f"handler {self.name} returned an awaitable; declare it as async def")
        return context.emitted

    async def _on_process(
        self, work: Work, records: Sequence[ConsumerRecord], context: Context
    ) -> Sequence[ProducerRecord]:
        assert self._processes is not None
        data = [data_of(record) for record in records]
        given_ms, work.started_ms = work.started_ms, NOT_STARTED_MS

        def start_time_out() -> None:
            work.started_ms = int(asyncio.get_running_loop().time() * 1_000)

        try:
            outcome = await self._processes.run(
                handle_in_worker, data, context.attempt, on_start=start_time_out
            )
        finally:
            if work.started_ms == NOT_STARTED_MS:
                work.started_ms = given_ms
        return raise_or_emitted(outcome)


class _OnLoop:
    """Runs an async function."""

    def __init__(self, arguments: Arguments, function: Function) -> None:
        self._call = arguments.call_of(function)

    async def __call__(
        self, work: Work, records: Sequence[ConsumerRecord], context: Context
    ) -> Sequence[ProducerRecord]:
        await self._call(records, context)
        context.check_awaited()
        return context.emitted


def takes_work(function: Function | Handler) -> TypeGuard[Handler]:
    """Return whether a function or object is a `Handler` already: a parameter is annotated `Work`."""
    hints = getattr(unwrapped(function), "__annotations__", {})
    return any(kind in (Work, "Work", "seams.Work") for name, kind in hints.items() if name != "return")


def is_async_function(function: Function) -> bool:
    """Return whether a call of a function, callable object or partial is awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(unwrapped(function))


def check_importable(function: Function, name: str, *, is_async: bool) -> None:
    """Raise InvalidHandler for a function that a worker process cannot import."""
    if is_async:
        raise InvalidHandler(f"handler {name} is async; processes run plain functions: declare it with def")
    called: Any = unwrapped(function)
    if "<" in str(getattr(called, "__qualname__", "")):
        raise InvalidHandler(
            f"handler {name} is defined inside a function; worker processes import it by its name, so "
            "define it at the module's level"
        )


def check_picklable(function: Function, name: str) -> None:
    """Raise InvalidHandler for a function that cannot be sent to a worker process; once it is defined."""
    try:
        pickle.dumps(function)
    except Exception as error:
        raise InvalidHandler(f"handler {name} cannot be sent to worker processes: {error}") from error
