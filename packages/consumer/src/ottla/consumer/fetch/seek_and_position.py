"""Seek and rewind assigned partitions, and return their positions and lags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ottla.consumer.errors import PositionNotFound
from ottla.consumer.fetch.positions import NO_EPOCH, PartitionState, Positions
from ottla.consumer.fetch.record_delivery import RecordDelivery
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.protocol.topics import TopicPartition


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
