"""Concurrent operations in batches: those that arrive while one batch is under way are the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from ottla.streams.dedupe.errors import StoreUnavailable

Op = TypeVar("Op")
R = TypeVar("R")


class Batcher(Generic[Op, R]):
    """Runs submitted operations in batches of up to `max_ops`, one batch at a time.

    `run` returns one result per operation. Its StoreUnavailable reaches each operation of the batch.
    Operations of cancelled callers run nevertheless. At its end the context finishes what was submitted.
    """

    def __init__(self, run: Callable[[list[Op]], Awaitable[Sequence[R]]], *, max_ops: int = 1_000) -> None:
        self._run = run
        self._max_ops = max_ops
        self._waiting: deque[tuple[Op, asyncio.Future[R]]] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.create_task(self._run_batches())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        # Without the error, which would cancel the operations under way: marks of finished records among
        # them.
        await self._tasks.__aexit__(None, None, None)

    async def submit(self, operation: Op) -> R:
        """Run an operation in the next batch and return its result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        self._wake.set()
        return await future

    async def _run_batches(self) -> None:
        while not self._closing or self._waiting:
            if not self._waiting:
                await self._wake.wait()
            self._wake.clear()
            batch = [self._waiting.popleft() for _ in range(min(self._max_ops, len(self._waiting)))]
            if batch:
                await self._run_batch(batch)

    def _fail(
        self, batch: Iterable[tuple[Op, asyncio.Future[R]]], error: Callable[[], BaseException]
    ) -> None:
        for _, future in batch:
            if not future.done():
                future.set_exception(error())

    async def _run_batch(self, batch: list[tuple[Op, asyncio.Future[R]]]) -> None:
        try:
            results = await self._run([operation for operation, _ in batch])
        except StoreUnavailable as error:
            unavailable = error
            self._fail(batch, lambda: unavailable.again())
        except BaseException:
            # A mistake in the store, or its end: nobody may wait for what does not come.
            for _, future in (*batch, *self._waiting):
                future.cancel()
            self._closing = True
            raise
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
