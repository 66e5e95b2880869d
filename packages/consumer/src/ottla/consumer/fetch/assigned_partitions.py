"""What a consumer does for its group: having partitions, and giving them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer._records import Cursor
from ottla.consumer.fetch.positions import Positions
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class Giving(Protocol):
    """What is being given out, and what the application has in hand."""

    def stop_giving(self, partitions: Partitions) -> None:
        """Go on with other partitions, from the next record on."""

    def take_away(self, partitions: Partitions) -> None:
        """Read partitions no more. When they come back, what is in hand of them now counts no more."""

    def handled(self) -> dict[TopicPartition, int]:
        """Return what is in hand: the first offset that is not finished, by partition."""

    def asked_lately(self) -> bool:
        """Say whether records were asked for since the last call of this, or are waited for."""


class GroupSide:
    """The application as its membership sees it (`membership.Application`)."""

    def __init__(self, positions: Positions, giving: Giving, look: Callable[[], None]) -> None:
        self._positions = positions
        self._giving = giving
        self._look = look
        self.is_over = False
        """Whether partitions were assigned by hand since: what is left of the group does not touch those."""

    def owned(self) -> Partitions:
        """Return the partitions that the consumer has."""
        return self._positions.assigned

    def hold(self, partitions: Partitions) -> None:
        """Give out no more records of partitions, those at hand included. Positions stay."""
        if self.is_over:
            return
        self._giving.stop_giving(partitions)
        for partition in partitions:
            if (place := self._positions.get(partition)) is not None:
                place.is_held = True
                place.forget()

    def release(self, partitions: Partitions) -> None:
        """Give out records again of partitions that were held, and are still there."""
        for partition in partitions:
            if (place := self._positions.get(partition)) is not None:
                place.is_held = False
                self._positions.enqueue(place)
        self._look()

    async def revoke(self, partitions: Partitions) -> None:
        """Take partitions away."""
        if self.is_over:
            return
        self._giving.take_away(partitions)

    async def lost(self, partitions: Partitions) -> None:
        """Take partitions away that others may have already."""
        await self.revoke(partitions)

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        """Have exactly these partitions; those that are added come held, until `release`."""
        if self.is_over:
            return
        self._giving.take_away(self._positions.assigned - partitions)
        self._positions.assign(sorted(partitions), held=True)
        self._look()

    def asked_lately(self) -> bool:
        """Say whether records were asked for since the last call of this, or are waited for."""
        return self._giving.asked_lately()

    def is_handling(self, partitions: Partitions) -> bool:
        """Say whether the application has records of partitions in hand that it is not finished with."""
        return not partitions.isdisjoint(self._giving.handled())

    def finished_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return how far the application is finished with partitions: what it has in hand does not count."""
        handled = self._giving.handled()
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for place in self._positions:
            given = place.committable()
            if given is not None:
                first = handled.get(place.partition, given.offset)
                found[place.partition] = given._replace(offset=min(first, given.offset))
        return found


def in_hand(cursor: Cursor | None) -> dict[TopicPartition, int]:
    """Return the record that a cursor gave last, as `handled` does."""
    return {} if cursor is None or cursor.last_offset < 0 else {cursor.topic_partition: cursor.last_offset}
