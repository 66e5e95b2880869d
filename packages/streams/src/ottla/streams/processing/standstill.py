"""Partitions that stand still: their lowest unfinished record neither runs nor waits for a retry. Pure.

That is no slow handler, which is judged by its own time, and no record that fails again and again: nothing
will come of the record by itself. Causes are faults, a group that does not answer heartbeats (no handler
starts meanwhile), and outputs that are not acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.protocol.topics import TopicPartition

LOOK_EVERY_S: Final = 5.0
LOG_AFTER_MS: Final = 30_000


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
