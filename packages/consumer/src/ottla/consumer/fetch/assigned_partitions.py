"""The assigned partitions: held, released and revoked by the group; positions sought and read by users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.errors import PositionNotFound
from ottla.consumer.fetch.positions import NO_EPOCH, PartitionState, Positions
from ottla.consumer.fetch.record_delivery import RecordDelivery
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class PartitionDelivery(Protocol):
    """The part of record delivery that the assigned partitions use."""

    has_lost_records: bool

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

    def has_lost_records(self) -> bool:
        """Return whether a partition was taken away with unfinished records, until more are asked for."""
        return self._delivery.has_lost_records

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


class PositionOperations:
    """The operations of the application on positions; `position` waits until a position is resolved."""

    def __init__(
        self,
        positions: Positions,
        delivery: RecordDelivery,
        notifier: StateChangeNotifier,
        *,
        timeout_s: float,
        read_committed: bool,
        check_open: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self._positions = positions
        self._delivery = delivery
        self._notifier = notifier
        self._timeout_s = timeout_s
        self._read_committed = read_committed
        self._check_open = check_open
        self._on_change = on_change

    def seek(self, state: PartitionState, offset: int, leader_epoch: int = NO_EPOCH) -> None:
        """Continue a partition at an offset."""
        self._delivery.discard(state)
        state.seek(offset, leader_epoch)
        self._on_change()

    def start_over(self, state: PartitionState) -> None:
        """Continue a partition where a new reader would: at the committed offset, or by the reset policy."""
        self._delivery.discard(state)
        state.seek_time(None)
        self._on_change()

    async def seek_times(self, times: Mapping[TopicPartition, int]) -> None:
        """Continue partitions at timestamps, and wait until the offsets are known."""
        for partition, time in times.items():
            state = self._positions[partition]
            self._delivery.discard(state)
            state.seek_time(time)
        for partition in times:
            await self.position(partition)

    def rewind_unfinished(self) -> None:
        """Rewind to the first record that was not finished: the application never saw it.

        Partitions that were unassigned or sought since stay where they are.
        """
        for partition, offset in self._delivery.unfinished().items():
            if (state := self._positions.get(partition)) is not None:
                self._delivery.discard(state)
                state.seek(offset)
        self._on_change()

    async def position(self, partition: TopicPartition) -> int:
        """Return a position once it is resolved. Raises its failure, PositionNotFound after the timeout."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        while (position := self._positions[partition].position) is None:
            self._check_open()
            state = self._positions[partition]
            state.is_awaited = True
            if state.failure is not None:
                failure, state.failure = state.failure, None
                raise failure
            self._on_change()
            if not await self._notifier.wait(deadline_s):
                cause = self._positions[partition].last_retried
                raise PositionNotFound(partition, self._timeout_s, cause) from cause
        return position

    def lag(self, state: PartitionState) -> int | None:
        """Return the records between position and end, as of the last response; None if unknown."""
        end = state.last_stable_offset if self._read_committed else state.high_watermark
        position = state.position
        return None if end is None or position is None else max(0, end - position)

    def lags(self) -> dict[TopicPartition, int]:
        """Return the lags that are known."""
        lags = ((state.partition, self.lag(state)) for state in self._positions)
        return {partition: lag for partition, lag in lags if lag is not None}
