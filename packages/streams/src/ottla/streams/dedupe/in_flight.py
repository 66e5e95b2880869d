"""Identities that are being handled in this process: the second record waits for the outcome of the first."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from ottla.consumer.record import ConsumerRecord
from ottla.streams.dedupe.partitions import ScopeState
from ottla.streams.dedupe.store import Scope

Held = tuple[Scope, bytes]


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
