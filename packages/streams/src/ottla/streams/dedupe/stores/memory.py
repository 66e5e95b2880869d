"""A store in memory: nothing survives the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from ottla.streams.dedupe.store import Claim, Scope
from ottla.streams.dedupe.window import Window, WindowLimits
from ottla.streams.environment import now_ms

HOUR_MS = 3_600_000


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
