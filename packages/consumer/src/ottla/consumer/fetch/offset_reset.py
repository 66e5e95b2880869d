"""Where to start reading: at the committed offset, else where `auto_offset_reset` says, or at a timestamp."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import NoOffset
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, NOT_FOUND, OffsetLookups
from ottla.consumer.fetch.position_resolution_step import settle
from ottla.consumer.fetch.positions import PartitionState, snapshot, unchanged
from ottla.protocol.topics import TopicPartition

FetchCommitted = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]


def reset_time(config: ConsumerConfig) -> int:
    """Return the timestamp that `auto_offset_reset` stands for in ListOffsets."""
    return EARLIEST if config.auto_offset_reset == "earliest" else LATEST


class CommittedOffsets:
    """Starts partitions at the offsets that the group committed."""

    def __init__(self, config: ConsumerConfig, fetch_committed: FetchCommitted | None) -> None:
        self._config = config
        self._fetch_committed = fetch_committed

    def is_needed(self, state: PartitionState) -> bool:
        """Return whether a partition may start at a committed offset."""
        return state.needs_position and not state.skips_committed

    async def resolve(self, states: list[PartitionState]) -> bool:
        """Fetch committed offsets; the reset policy applies to partitions without one."""
        before = snapshot(states)
        found: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._fetch_committed is not None:
            found = await self._fetch_committed([state.partition for state in states])
        for state in unchanged(states, before):
            committed = found.get(state.partition)
            if committed is not None:
                state.seek(committed.offset, committed.leader_epoch)
            elif self._config.auto_offset_reset == "none":
                state.failure = NoOffset(state.partition)
            else:
                state.seek_time(reset_time(self._config))
        return True


class OffsetReset:
    """Starts partitions at a timestamp, or where the reset policy says: at the beginning or the end."""

    def __init__(self, config: ConsumerConfig, lookups: OffsetLookups) -> None:
        self._config = config
        self._lookups = lookups

    def is_needed(self, state: PartitionState) -> bool:
        """Return whether a partition starts at a timestamp or by the reset policy."""
        return state.needs_position and state.skips_committed

    async def resolve(self, states: list[PartitionState]) -> bool:
        """Look up the offsets of timestamps, for each partition its own."""
        before = snapshot(states)
        results = await self._lookups.once_by_time(
            {state.partition: self._time_of(state) for state in states}
        )
        for state in unchanged(states, before):
            found = results.found.get(state.partition)
            if found is not None and found.offset == NOT_FOUND:
                state.seek_time(LATEST)  # all records are older: the next round finds the end
            elif found is not None:
                state.seek(found.offset)
        is_late = any(found.offset == NOT_FOUND for found in results.found.values())
        return settle(unchanged(states, before), results.failed) and not is_late

    def _time_of(self, state: PartitionState) -> int:
        return reset_time(self._config) if state.lookup_time is None else state.lookup_time
