"""When intake of a partition pauses and resumes: budgets of records, bytes and commit metadata. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.streams.scheduling._core import Totals
from ottla.streams.scheduling.assignment import Assignment
from ottla.streams.scheduling.finished_offsets import worst_bytes

STEP_RECORDS = 256
"""The most records of one step of intake: how far a budget may be exceeded per partition."""

_LEAST_FOR_A_STEP_BYTES = worst_bytes(2 * STEP_RECORDS, 2 * STEP_RECORDS)
"""Below it there is no room for what a step may add: the partition would stand still for one slow record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeLimits:
    """The bounds of what a scheduler holds; `StreamsConfig` has the same names."""

    max_buffered_records: int = 10_000
    max_buffered_bytes: int = 64 * 1024 * 1024
    max_parked_records: int = 10_000
    max_parked_bytes: int = 64 * 1024 * 1024
    max_finished_ahead: int = 1_000_000
    commit_metadata_max_bytes: int = 4_096


def must_pause(assignment: Assignment, totals: Totals, limits: IntakeLimits, partitions: int) -> bool:
    """Return whether intake of a partition pauses.

    While all together hold less than half of a budget, a partition may fill that half. Above it, each has a
    share of the other half: so a partition whose records are slow does not starve the others.
    """
    return (
        _is_over(assignment.buffered, totals.buffered, limits.max_buffered_records, partitions)
        or _is_over(assignment.buffered_bytes, totals.buffered_bytes, limits.max_buffered_bytes, partitions)
        or _is_over(assignment.parked, totals.parked, limits.max_parked_records, partitions)
        or _is_over(assignment.parked_bytes, totals.parked_bytes, limits.max_parked_bytes, partitions)
        or assignment.frontier.ahead >= limits.max_finished_ahead
        or _metadata_may_overflow(assignment, limits.commit_metadata_max_bytes)
    )


def may_resume(assignment: Assignment, totals: Totals, limits: IntakeLimits, partitions: int) -> bool:
    """Return whether intake of a paused partition resumes: a little below the bounds, so as not to flap."""
    return not (
        _is_over(assignment.buffered * 2, totals.buffered * 4 // 3, limits.max_buffered_records, partitions)
        or _is_over(
            assignment.buffered_bytes * 2,
            totals.buffered_bytes * 4 // 3,
            limits.max_buffered_bytes,
            partitions,
        )
        or _is_over(assignment.parked * 2, totals.parked * 4 // 3, limits.max_parked_records, partitions)
        or _is_over(
            assignment.parked_bytes * 2, totals.parked_bytes * 4 // 3, limits.max_parked_bytes, partitions
        )
        or assignment.frontier.ahead * 4 // 3 >= limits.max_finished_ahead
        or _metadata_may_overflow(assignment, limits.commit_metadata_max_bytes * 3 // 4)
    )


def _is_over(own: int, total: int, most: int, partitions: int) -> bool:
    half = most // 2
    return own > 0 and total >= half and own * max(1, partitions) >= half


def _metadata_may_overflow(assignment: Assignment, most: int) -> bool:
    """Return whether the metadata may become too long after one more step of intake.

    Records may finish in any order, and the next owner would handle again those that it cannot name.
    """
    frontier = assignment.frontier
    if not most or not frontier.unfinished:
        return False  # none is wanted, or the frontier passes all offsets
    step = STEP_RECORDS if most >= _LEAST_FOR_A_STEP_BYTES else 0
    runs = frontier.unfinished + frontier.known_ranges
    return worst_bytes(frontier.span + step, runs + step) > most
