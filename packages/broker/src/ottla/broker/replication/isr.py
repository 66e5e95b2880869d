"""The rules of the in-sync replica set: maximal ISR, expansion, shrink, progress of followers. Pure.

`Partition` holds the state, asks these rules, and is the only one that writes a high watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.zookeeper.frozen_classes import frozen

UNKNOWN_OFFSET = -1
NEVER_MS = -(1 << 62)


@dataclass(slots=True)
class Progress:
    """A follower's progress, by the offsets that it asked for."""

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = 0
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: int = UNKNOWN_OFFSET

    def fetched(self, offset: int, log_start_offset: int, leader_end: int, now_ms: int) -> None:
        """Record a fetch. Caught up means: it asked for the log end, of now or of its fetch before."""
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.leader_end_at_last_fetch != UNKNOWN_OFFSET:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset, self.log_start_offset = offset, log_start_offset
        self.leader_end_at_last_fetch, self.last_fetch_ms = leader_end, now_ms

    def asked_for_end(self, now_ms: int) -> None:
        """Record that its fetches have gone on until `now_ms`, at the leader's end, which had not moved."""
        if self.log_end_offset == self.leader_end_at_last_fetch != UNKNOWN_OFFSET:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
            self.last_fetch_ms = max(self.last_fetch_ms, now_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """Return whether it has all records, or had them less than `max_lag_ms` ago."""
        return self.log_end_offset == leader_end or now_ms - self.last_caught_up_ms <= max_lag_ms


@frozen
class Proposal:
    """An ISR that was sent to the controller and not answered."""

    token: int
    isr: frozenset[int]


def maximal_isr(isr: frozenset[int], proposal: Proposal | None) -> frozenset[int]:
    """Return the committed ISR, with the members that a pending proposal would add."""
    return isr if proposal is None else isr | proposal.isr


def may_expand(progress: Progress, high_watermark: int, epoch_start_offset: int) -> bool:
    """Return whether a follower outside the ISR has enough records to join it."""
    # The high watermark alone is not enough: a new leader's is one fetch behind, and a follower below
    # the start of this epoch may lack records that the previous epoch has acknowledged.
    end = progress.log_end_offset
    return end >= high_watermark and end >= epoch_start_offset and end != UNKNOWN_OFFSET


def lagging_members(
    isr: frozenset[int],
    followers: Mapping[int, Progress],
    log_end_offset: int,
    now_ms: int,
    max_lag_ms: int,
) -> set[int]:
    """Return the members that have lagged for too long: the ISR shrinks by them."""
    return {
        replica
        for replica, progress in followers.items()
        if replica in isr and not progress.is_caught_up(log_end_offset, now_ms, max_lag_ms)
    }


def holding_back(
    members: frozenset[int],
    followers: Mapping[int, Progress],
    epoch_start_offset: int,
    now_ms: int,
    max_lag_ms: int,
) -> list[Progress]:
    """Return the followers that the high watermark waits for; `members` is the maximal ISR."""
    # A follower that is caught up but not yet in the ISR counts too. Without this, under steady writes,
    # it would always be below the high watermark when it asks, and would never join.
    return [
        progress
        for replica, progress in followers.items()
        if replica in members
        or (
            progress.log_end_offset != UNKNOWN_OFFSET
            and progress.log_end_offset >= epoch_start_offset
            and now_ms - progress.last_caught_up_ms <= max_lag_ms
        )
    ]
