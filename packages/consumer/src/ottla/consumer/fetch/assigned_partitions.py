"""The assigned partitions as the group sees them: hold, release, revoke and assign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.fetch.positions import Positions
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class PartitionDelivery(Protocol):
    """The part of record delivery that the assigned partitions use."""

    def suspend(self, partitions: Partitions) -> None:
        """Continue with other partitions, from the next record on."""

    def unassign(self, partitions: Partitions) -> None:
        """Unassign partitions. Their unfinished records are forgotten, also if they are assigned again."""

    def unfinished(self) -> dict[TopicPartition, int]:
        """Return the first unfinished offset of each partition of which records were delivered last."""

    def was_polled(self) -> bool:
        """Return whether records were asked for since the last call of this, or are waited for."""


class AssignedPartitions:
    """Applies what the group decides to positions and delivery (implements `membership.Application`)."""

    def __init__(
        self, positions: Positions, delivery: PartitionDelivery, on_change: Callable[[], None]
    ) -> None:
        self._positions = positions
        self._delivery = delivery
        self._on_change = on_change
        self.is_manual = False
        """Whether partitions were assigned by hand since: the rest of the membership must not touch those."""

    def owned(self) -> Partitions:
        """Return the assigned partitions."""
        return self._positions.assigned

    def hold(self, partitions: Partitions) -> None:
        """Stop the delivery of partitions, buffered records included. Positions stay."""
        if self.is_manual:
            return
        self._delivery.suspend(partitions)
        for partition in partitions:
            if (state := self._positions.get(partition)) is not None:
                state.is_held = True
                state.discard_buffered()

    def release(self, partitions: Partitions) -> None:
        """Resume the delivery of held partitions that are still assigned."""
        for partition in partitions:
            if (state := self._positions.get(partition)) is not None:
                state.is_held = False
                self._positions.enqueue(state)
        self._on_change()

    async def revoke(self, partitions: Partitions) -> None:
        """Unassign partitions."""
        if self.is_manual:
            return
        self._delivery.unassign(partitions)

    async def lost(self, partitions: Partitions) -> None:
        """Unassign partitions that other members may own already."""
        await self.revoke(partitions)

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        """Assign exactly these partitions; added ones are held until `release`."""
        if self.is_manual:
            return
        self._delivery.unassign(self._positions.assigned - partitions)
        self._positions.assign(sorted(partitions), held=True)
        self._on_change()

    def was_polled(self) -> bool:
        """Return whether records were asked for since the last call of this, or are waited for."""
        return self._delivery.was_polled()

    def is_handling(self, partitions: Partitions) -> bool:
        """Return whether the application has unfinished records of partitions."""
        return not partitions.isdisjoint(self._delivery.unfinished())

    def finished_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets up to which the application is finished: unfinished records do not count."""
        unfinished = self._delivery.unfinished()
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for state in self._positions:
            delivered = state.committable()
            if delivered is not None:
                first = unfinished.get(state.partition, delivered.offset)
                found[state.partition] = delivered._replace(offset=min(first, delivered.offset))
        return found
