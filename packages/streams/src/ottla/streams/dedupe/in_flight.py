"""Identities from their claim to their mark: each is handled once at a time, here and among members.

The second record with an identity waits for the outcome of the first: in this process, or in a member with
the same shared store. Marks that come while a write is under way are the next write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.consumer.record import ConsumerRecord
from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.partitions import Availability, ScopeState
from ottla.streams.dedupe.store import Claim, DedupeStore, Scope

Held = tuple[Scope, bytes]
FIRST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0
RENEWALS_PER_LEASE: Final = 3
MAX_MARKS: Final = 2_000


@dataclass(slots=True, eq=False)
class Admission:
    """Records to handle; their identities are locked until the admission is finished or abandoned."""

    state: ScopeState
    held: list[Held]
    records: list[ConsumerRecord] = field(default_factory=list)
    is_marked: bool = False
    """Marked: before the handler, or after it."""

    @property
    def identities(self) -> list[bytes]:
        """The locked identities."""
        return [identity for _, identity in self.held]


Handled = tuple[Admission, asyncio.Future[None]]


class InFlight:
    """Locks on identities. A batch takes its locks at once, so that batches cannot block each other."""

    def __init__(self) -> None:
        self._held: dict[Held, asyncio.Event | None] = {}  # an event if somebody waits

    def __len__(self) -> int:
        """Number of identities that are being handled."""
        return len(self._held)

    async def acquire(self, wanted: Collection[Held]) -> bool:
        """Take the locks, after those that hold one of them have released it; return whether one did."""
        waited = False
        while (busy := next((lock for lock in wanted if lock in self._held), None)) is not None:
            released = self._held[busy]
            if released is None:
                released = self._held[busy] = asyncio.Event()
            await released.wait()
            waited = True
        for lock in wanted:
            self._held[lock] = None
        return waited

    def release(self, held: Collection[Held]) -> None:
        """Give locks back."""
        for lock in held:
            released = self._held.pop(lock)
            if released is not None:
                released.set()


class Claims:
    """The claims of one member, renewed while it lives; those of a dead member end with their lease."""

    def __init__(self, store: DedupeStore, reads: Availability, owner: str, lease_ms: int) -> None:
        self._store = store
        self._reads = reads
        self._owner = owner
        self._lease_ms = lease_ms
        self._claimed: set[Held] = set()

    async def take(self, scope: Scope, identities: Collection[bytes]) -> set[bytes]:
        """Claim identities, after other members; return those that were marked meanwhile or before."""
        # All members in the same order, so that two with parts of each other's batches do not wait for ever.
        return {identity for identity in sorted(identities) if await self._is_done(scope, identity)}

    async def _is_done(self, scope: Scope, identity: bytes) -> bool:
        wait_s = FIRST_WAIT_S
        while (answer := await self._claim(scope, identity)) is Claim.TAKEN:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        return answer is Claim.DONE

    def released(self, held: Iterable[Held]) -> list[Held]:
        """Forget claims; return those that must be ended in the store."""
        ended = [lock for lock in held if lock in self._claimed]
        self._claimed.difference_update(ended)
        return ended

    def ended(self, held: Iterable[Held]) -> None:
        """Forget claims that a mark has ended."""
        self._claimed.difference_update(held)

    async def release(self, held: Collection[Held]) -> None:
        """End claims in the store. If it does not answer, they end with their lease."""
        for scope, identity in held:
            try:
                await self._store.release(scope, identity, self._owner)
            except StoreUnavailable:
                return

    async def renew(self) -> None:
        """Renew all claims a few times per lease, for ever."""
        while True:
            await asyncio.sleep(self._lease_ms / RENEWALS_PER_LEASE / 1_000)
            for scope, identity in list(self._claimed):
                await self._renew(scope, identity)

    async def _renew(self, scope: Scope, identity: bytes) -> None:
        # It may have been given back while others were renewed.
        if (scope, identity) not in self._claimed:
            return
        try:
            await self._store.claim(scope, identity, self._owner, self._lease_ms)
        except StoreUnavailable:
            return

    async def _claim(self, scope: Scope, identity: bytes) -> Claim:
        answer = await self._reads.call(
            lambda: self._store.claim(scope, identity, self._owner, self._lease_ms)
        )
        if answer is Claim.NEW:
            self._claimed.add((scope, identity))
        return answer


class Marking:
    """Marks admissions with `write`, one write per scope at a time, in tasks that end when there is no more.

    `close` gives the locks of an admission back. It is called after the write, also after one that failed.
    """

    def __init__(
        self,
        write: Callable[[list[Admission]], Awaitable[None]],
        close: Callable[[Admission], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._write = write
        self._close = close
        self._spawn = spawn
        self._waiting: dict[Scope, list[Handled]] = {}

    def submit(self, admission: Admission, finished: asyncio.Future[None]) -> None:
        """Mark an admission soon, and set the future then."""
        waiting = self._waiting.get(admission.state.scope)
        if waiting is not None:
            waiting.append((admission, finished))
            return
        self._waiting[admission.state.scope] = [(admission, finished)]
        self._spawn(self._run(admission.state.scope))

    async def _run(self, scope: Scope) -> None:
        waiting = self._waiting[scope]
        try:
            while waiting:
                batch, waiting[:MAX_MARKS] = waiting[:MAX_MARKS], []
                await self._mark(batch)
        finally:
            del self._waiting[scope]
            for admission, finished in waiting:  # the guard ends
                self._close(admission)
                finished.cancel()

    async def _mark(self, batch: list[Handled]) -> None:
        error: BaseException | None = None
        try:
            await self._write([admission for admission, _ in batch])
        except Exception as failure:
            error = failure
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            for admission, finished in batch:
                self._close(admission)
                settle(finished, error)


def settle(finished: asyncio.Future[None], error: BaseException | None) -> None:
    """Set the outcome of a future, unless it is cancelled."""
    if finished.done():
        return
    if error is None:
        finished.set_result(None)
    elif isinstance(error, asyncio.CancelledError):
        finished.cancel()
    else:
        finished.set_exception(error)
