"""Stores of the identities of handled records: their protocol, and the store in memory.

Operations that arrive while one batch of them is under way are the next batch.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.window import Window, WindowLimits
from ottla.streams.environment import now_ms

Op = TypeVar("Op")
R = TypeVar("R")

HOUR_MS = 3_600_000


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


class MemoryStore:
    """Remembers identities in this process, for repetitions that come soon: those of a resending producer.

    Up to `max_ids` per partition, about 300 bytes each, none for longer than `ttl_ms`. After a restart, and
    on another member after a rebalance, it knows nothing.
    """

    claims = False
    has_topic_scope = True
    is_remote = False

    def __init__(
        self,
        *,
        max_ids: int | None = 100_000,
        ttl_ms: int | None = HOUR_MS,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._limits = WindowLimits(ttl_ms, max_ids)
        self._clock = clock
        self._windows: dict[Scope, Window] = {}

    @property
    def limits(self) -> WindowLimits:
        """The window in which the store remembers."""
        return self._limits

    def __str__(self) -> str:
        return "in memory"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def assign(self, scope: Scope) -> None:
        """Keep all marks: their records were handled, even if other members have handled more since then."""

    def revoke(self, scope: Scope) -> None:
        """Keep all marks, as `assign` does: they are lost otherwise."""

    async def seen(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Return those of the identities that were marked within the window."""
        window = self._windows.get(scope)
        if window is None:
            return set()
        at_ms = self._clock()
        return {identity for identity in identities if window.contains(identity, at_ms)}

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities."""
        self.mark_now(scope, identities)

    def mark_now(self, scope: Scope, identities: Collection[bytes]) -> None:
        """Remember identities."""
        window = self._windows.setdefault(scope, Window(self._limits))
        at_ms = self._clock()
        for identity in identities:
            window.add(identity, at_ms)

    async def claim(self, scope: Scope, identity: bytes, owner: str, lease_ms: int) -> Claim:
        """Return whether an identity is new; the guard keeps records of one process apart."""
        return Claim.DONE if await self.seen(scope, (identity,)) else Claim.NEW

    async def release(self, scope: Scope, identity: bytes, owner: str) -> None:
        """Do nothing: there are no claims between members."""

    async def identities(self, scope: Scope) -> AsyncIterator[Sequence[bytes]]:
        """Yield all identities within the window, in parts."""
        if scope in self._windows:
            yield list(self._windows[scope].identities(self._clock()))
