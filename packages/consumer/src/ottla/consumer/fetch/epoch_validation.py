"""Detect that a log was truncated below the position, by the end offset of a leader epoch (KIP-320)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ottla.client.retry import is_retriable
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.errors import LogTruncated
from ottla.consumer.fetch.offset_lookups import EpochEnd, OffsetLookups
from ottla.consumer.fetch.offset_reset import reset_time
from ottla.consumer.fetch.positions import NO_EPOCH, PartitionState, snapshot, unchanged

log = logging.getLogger(__name__)


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
