"""Claims in a shared store: of several members with one identity, one handles it and the others wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from ottla.streams.dedupe.availability import Availability
from ottla.streams.dedupe.errors import StoreUnavailable
from ottla.streams.dedupe.in_flight import Held
from ottla.streams.dedupe.store import Claim, DedupeStore, Scope

FIRST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0
RENEWALS_PER_LEASE: Final = 3


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
