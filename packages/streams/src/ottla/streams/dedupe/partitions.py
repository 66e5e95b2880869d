"""The state of each assigned partition in a guard: whether its store is ready, and its prefilter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from ottla.streams.dedupe.availability import Availability
from ottla.streams.dedupe.prefilter import Prefilter
from ottla.streams.dedupe.store import DedupeStore, Scope

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


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
