"""The state of each assigned partition in a guard: whether its store answers, and its prefilter.

While a store is unavailable records wait: one log line when that begins, one when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, TypeVar

from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.store import DedupeStore, Scope
from ottla.streams.dedupe.window import Prefilter

T = TypeVar("T")

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.05
LONGEST_WAIT_S: Final = 2.0
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Availability:
    """Repeats calls of a store until it answers. There is one for what reads, and one for what writes.

    A full store still answers what it is asked: one for both would report it as available in between.
    """

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence
        self._waiting = 0
        self._available = asyncio.Event()
        self._available.set()

    @property
    def is_available(self) -> bool:
        """Whether no call is being repeated."""
        return self._waiting == 0

    async def wait(self) -> None:
        """Wait until no call is being repeated: all have succeeded, or their callers were cancelled."""
        await self._available.wait()

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an operation, which is repeated while it raises StoreUnavailable."""
        try:
            return await operation()
        except StoreUnavailable as error:
            self._begin(error)
            return await self._repeat(operation, error.store)

    async def _repeat(self, operation: Callable[[], Awaitable[T]], store: str) -> T:
        wait_s = FIRST_WAIT_S
        try:
            while True:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                try:
                    result = await operation()
                except StoreUnavailable:
                    continue
                if self._waiting == 1:
                    log.info("a dedupe store is available again", extra={"store": store})
                return result
        finally:
            self._end()

    def _begin(self, error: StoreUnavailable) -> None:
        self._waiting += 1
        if self._waiting == 1:
            self._available.clear()
            facts = {"store": error.store, "reason": error.reason, "consequence": self._consequence}
            log.warning("a dedupe store is unavailable", extra=facts)

    def _end(self) -> None:
        self._waiting -= 1
        if self._waiting == 0:
            self._available.set()


class ScopeState:
    """One scope since its assignment; the context of its tasks is that of the guard."""

    def __init__(self, scope: Scope, prefilter: Prefilter | None) -> None:
        self.scope = scope
        self.ready = asyncio.Event()
        """The store is ready for the scope."""
        self.prefilter = prefilter
        self.is_filled = False
        self.preparation: asyncio.Task[None] | None = None

    def is_new(self, identity: bytes) -> bool:
        """Return whether an identity is new for sure; False says nothing."""
        return self.is_filled and self.prefilter is not None and not self.prefilter.may_contain(identity)

    def add(self, identities: Collection[bytes], now_ms: int) -> None:
        """Note identities that are being marked."""
        if self.prefilter is not None:
            self.prefilter.add(identities, now_ms)


class Scopes:
    """The scopes that records came from, prepared when the first record of each arrives."""

    def __init__(
        self, store: DedupeStore, reads: Availability, clock: Callable[[], int], *, with_prefilter: bool
    ) -> None:
        self._store = store
        self._reads = reads
        self._clock = clock
        self._with_prefilter = with_prefilter
        self._states: dict[Scope, ScopeState] = {}

    def state(self, scope: Scope, spawn: Spawn) -> ScopeState:
        """Return the state of a scope; a new one prepares itself in a task."""
        state = self._states.get(scope)
        if state is None:
            prefilter = Prefilter(self._store.limits) if self._with_prefilter else None
            state = self._states[scope] = ScopeState(scope, prefilter)
            state.preparation = spawn(self._prepare(state))
        return state

    def current(self, scope: Scope) -> ScopeState | None:
        """Return the state of a scope, if a record of it has come since its assignment."""
        return self._states.get(scope)

    def forget(self, scope: Scope) -> None:
        """Drop the state of a scope that other members mark from now on."""
        state = self._states.pop(scope, None)
        if state is not None and state.preparation is not None:
            state.preparation.cancel()
        self._store.revoke(scope)

    async def _prepare(self, state: ScopeState) -> None:
        await self._reads.call(lambda: self._store.assign(state.scope))
        state.ready.set()
        if state.prefilter is not None:
            await self._reads.call(lambda: self._fill(state))
            state.is_filled = True

    async def _fill(self, state: ScopeState) -> None:
        async for identities in self._store.identities(state.scope):
            state.add(identities, self._clock())
