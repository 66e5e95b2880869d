"""The steps that resolve and validate positions, by requests that `PositionResolver` repeats.

A position is the committed offset, else where `auto_offset_reset` says, or found by a timestamp. That a log
was truncated below the position shows in the end offset of its leader epoch (KIP-320).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from ottla.client.errors import DeadlineExceeded
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import LogTruncated, NoOffset
from ottla.consumer.fetch.offset_lookups import EARLIEST, LATEST, NOT_FOUND, EpochEnd, OffsetLookups
from ottla.consumer.fetch.positions import NO_EPOCH, PartitionState, snapshot, unchanged
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

FetchCommitted = Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]]


class ResolutionStep(Protocol):
    """Sends one kind of request to resolve or validate positions."""

    def is_needed(self, state: PartitionState) -> bool:
        """Return whether a partition needs this step."""

    async def resolve(self, states: list[PartitionState]) -> bool:
        """Send the request for partitions; return whether none of them must be tried again."""


def is_transient(error: Exception) -> bool:
    """Return whether to retry. An outage may outlast the timeout of one call: reading continues after it."""
    return is_retriable(error) or isinstance(error, DeadlineExceeded)


def fail(states: Iterable[PartitionState], error: Exception) -> None:
    """Raise an error to the application through the partitions, unless a retry may help."""
    is_retried = is_transient(error)
    if is_retried:
        log.info("positions were not resolved", extra={"reason": str(error)})
    for state in states:
        if is_retried:
            state.last_retried = error
        else:
            state.failure = error


def settle(states: list[PartitionState], failed: Mapping[TopicPartition, Exception]) -> bool:
    """Apply errors by partition; return whether none of them must be retried."""
    for state in states:
        if (error := failed.get(state.partition)) is not None:
            fail([state], error)
    return not any(is_retriable(error) for error in failed.values())


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


class EpochValidation:
    """Validates positions against the log of a new leader."""

    def __init__(
        self, config: ConsumerConfig, lookups: OffsetLookups, look_up_leaders: Callable[[], None]
    ) -> None:
        self._config = config
        self._lookups = lookups
        self._look_up_leaders = look_up_leaders

    def is_needed(self, state: PartitionState) -> bool:
        """Return whether the position must be validated."""
        return state.must_validate and state.failure is None

    async def resolve(self, states: list[PartitionState]) -> bool:
        """Ask leaders where the epochs of the positions end, and compare."""
        before = snapshot(states)
        epochs = {state.partition: state.leader_epoch for state in states}
        asked = [state for state in states if state.fetch_epoch != NO_EPOCH]
        wanted = {state.partition: (state.leader_epoch, state.fetch_epoch) for state in asked}
        results = await self._lookups.once_epoch_ends(wanted)
        later = {partition for partition, error in results.failed.items() if is_retriable(error)}
        for state in unchanged(states, before):
            if state.partition in later or state.leader_epoch != epochs[state.partition]:
                continue  # the leader changed during the request, and the new one may differ: ask it
            # Where the broker cannot tell, or is not allowed to, reading continues, as before KIP-320.
            state.must_validate = False
            if (end := results.found.get(state.partition)) is not None:
                self.check(state, end)
        if later:
            self._look_up_leaders()  # the leader epoch in the request may be out of date
        return not later

    def check(self, state: PartitionState, end: EpochEnd) -> None:
        """Compare a position with the end of its epoch; rewind, reset or fail if the log was truncated."""
        position = state.position
        if position is None or end.end_offset >= state.fetch_offset:
            return
        if 0 <= position <= end.end_offset:
            state.discard_buffered()  # only data fetched ahead is gone
            return
        diverges_at = end.end_offset if end.end_offset >= 0 else None
        extra = {"partition": str(state.partition), "position": position, "diverges_at": diverges_at}
        log.warning("the log was truncated", extra=extra)
        if self._config.auto_offset_reset == "none":
            state.discard_buffered()
            # Raised once, it must not be read on from a position that the log no longer has: the next look
            # finds the same, until a seek.
            state.must_validate = True
            state.failure = LogTruncated(state.partition, position, diverges_at)
        elif diverges_at is None:
            state.seek_time(reset_time(self._config))
        else:
            state.seek(diverges_at)
