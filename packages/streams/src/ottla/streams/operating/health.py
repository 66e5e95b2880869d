"""Whether a processor is healthy, and why not; which of its partitions stand still. Pure.

A partition stands still when its lowest unfinished record neither runs nor waits for a retry. That is no slow
handler, which is judged by its own time, and no record that fails again and again: nothing will come of the
record by itself. Causes are faults, a group that does not answer heartbeats (no handler starts meanwhile),
and outputs that are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.protocol.topics import TopicPartition

LOOK_EVERY_S: Final = 5.0
LOG_AFTER_MS: Final = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFacts:
    """The facts by which a processor's health is judged. Times are milliseconds that something has lasted."""

    failure: str | None = None
    """The error that stopped it, or that makes it stop."""
    is_stopped: bool = False
    oldest_in_flight_ms: float = 0
    """The oldest handler that runs."""
    oldest_offset: str = ""
    """The topic, partition and offset of its record."""
    standing_ms: float = 0
    """How long the lowest unfinished record of a partition neither ran nor waited for a retry."""
    standing: str = ""
    """That partition, with the offset and the number of unfinished records."""
    since_intake_ms: float | None = None
    """Since the last record was handled, while the broker has records and none are buffered; else None."""
    commits_failing_ms: float | None = None
    """Since the first of the commits that failed in a row; None: the last one succeeded."""
    commit_error: str = ""
    """The error of the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """From when on something is unhealthy."""

    stuck_handler_ms: int = 300_000
    """A handler that runs for longer."""
    standing_partition_ms: int = 60_000
    """A partition whose lowest unfinished record neither runs nor waits for a retry for longer."""
    stalled_intake_ms: int = 30_000
    """An intake that takes none of the records of the broker for longer."""
    failing_commits_ms: int = 60_000
    """Commits that fail for longer."""


@dataclass(frozen=True, slots=True)
class Health:
    """The verdict: healthy without reasons."""

    reasons: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether there is no reason against it."""
        return not self.reasons


def judge(facts: HealthFacts, limits: HealthLimits) -> Health:
    """Return the reasons why a processor is not healthy."""
    reasons = []
    if facts.failure is not None:
        reasons.append(f"failed: {facts.failure}")
    elif facts.is_stopped:
        reasons.append("stopped")
    if facts.oldest_in_flight_ms > limits.stuck_handler_ms:
        reasons.append(f"a handler has run for {_s(facts.oldest_in_flight_ms)}: {facts.oldest_offset}")
    if facts.standing_ms > limits.standing_partition_ms:
        reasons.append(f"a partition has stood still for {_s(facts.standing_ms)}: {facts.standing}")
    if facts.since_intake_ms is not None and facts.since_intake_ms > limits.stalled_intake_ms:
        reasons.append(
            f"intake stalled: there is lag, and no record has come for {_s(facts.since_intake_ms)}"
        )
    if facts.commits_failing_ms is not None and facts.commits_failing_ms > limits.failing_commits_ms:
        reasons.append(f"commits have failed for {_s(facts.commits_failing_ms)}: {facts.commit_error}")
    return Health(tuple(reasons))


def _s(milliseconds: float) -> str:
    return f"{milliseconds / 1_000:.0f} s"


@dataclass(frozen=True, slots=True)
class Standstill:
    """A partition at an offset, since a time, with the number of its unfinished records."""

    partition: TopicPartition
    offset: int
    unfinished: int
    since_ms: float


class Standstills:
    """The partitions that stood still at the last `look`."""

    def __init__(self) -> None:
        self._standing: dict[TopicPartition, Standstill] = {}
        self._logged: set[TopicPartition] = set()

    @property
    def longest(self) -> Standstill | None:
        """The partition that stands still for the longest time."""
        return min(self._standing.values(), key=lambda standstill: standstill.since_ms, default=None)

    def look(
        self,
        now_ms: float,
        positions: Mapping[TopicPartition, tuple[int, int]],
        cared_for: Collection[tuple[TopicPartition, int]],
    ) -> list[Standstill]:
        """Compare the partitions with those of the look before; return those to log, each once.

        `positions` has the lowest unfinished offset of each partition, and how many are unfinished.
        `cared_for` are the first offsets of the work that runs or waits for a retry.
        """
        before, self._standing = self._standing, {}
        for partition, (offset, unfinished) in positions.items():
            if (partition, offset) in cared_for:
                continue
            known = before.get(partition)
            since_ms = known.since_ms if known is not None and known.offset == offset else now_ms
            self._standing[partition] = Standstill(partition, offset, unfinished, since_ms)
        self._logged &= self._standing.keys()
        due = [
            standstill
            for standstill in self._standing.values()
            if now_ms - standstill.since_ms >= LOG_AFTER_MS and standstill.partition not in self._logged
        ]
        self._logged.update(standstill.partition for standstill in due)
        return due
