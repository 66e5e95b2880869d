"""The records of a piece of work that are handled, and the locks held for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.consumer.record import ConsumerRecord
from ottla.streams.dedupe.in_flight import Held
from ottla.streams.dedupe.partitions import ScopeState


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
