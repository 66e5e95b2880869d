"""The protocol of stores of identities of handled records, and batches of their operations."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.window import WindowLimits

Op = TypeVar("Op")
R = TypeVar("R")


class Scope(NamedTuple):
    """The records among which an identity is unique: of a partition, or of a topic (`partition` None)."""

    topic: str
    partition: int | None = None

    def __str__(self) -> str:
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"


class Claim(enum.Enum):
    """The answer of a store to a member that wants to handle a record."""

    NEW = enum.auto()
    """The identity is new, and belongs to this member until it is marked, released or the lease ends."""
    DONE = enum.auto()
    """The identity was marked within the window."""
    TAKEN = enum.auto()
    """Another member handles a record with this identity now."""


class DedupeStore(Protocol):
    """Remembers identities within a window. All methods may raise StoreUnavailable.

    A store is an async context manager, opened and closed by its guard. Calls may be made concurrently. A
    mark is durable, as far as the store is, when `mark` returns.
    """

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""

    @property
    def claims(self) -> bool:
        """Whether claims keep members apart that handle records of one topic scope."""

    @property
    def has_topic_scope(self) -> bool:
        """Whether it can be asked for an identity of a topic without its partition."""

    @property
    def is_remote(self) -> bool:
        """Whether `seen` costs so much that a prefilter pays."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def assign(self, scope: Scope) -> None:
        """Make ready for records of a newly assigned partition: what other members marked must be known."""

    def revoke(self, scope: Scope) -> None:
        """Free the memory of a partition that other members mark from now on; marks under way are written."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities, all or none, and end the claims on them."""

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Mark an identity as being handled by `owner`, unless it is marked or claimed by another one."""

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """End a claim of `owner` without a mark."""

    def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""


@runtime_checkable
class ImmediateStore(Protocol):
    """A store that writes marks without waiting: they cost no task."""

    def mark_now(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Do what `mark` does."""


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
