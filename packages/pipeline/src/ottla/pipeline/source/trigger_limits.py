"""How much of what is new a micro-batch takes. Pure.

The rules are Spark's: `maxOffsetsPerTrigger` is shared among partitions by how far each is behind, so that no
partition starves; `minOffsetsPerTrigger` waits for more, but never longer than `maxTriggerDelay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from ottla.pipeline.source.offset_json import Offsets
from ottla.protocol.topics import TopicPartition


def new_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return how many offsets there are between two places."""
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def shared(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return up to where to read, when `most` offsets are allowed in all.

    Each partition gets its part in proportion to what it has, and at least one offset where it has any. So
    the limit may be exceeded, as in Spark, by less than one offset for each partition.
    """
    behind = {partition: max(0, offset - start.get(partition, 0)) for partition, offset in end.items()}
    total = sum(behind.values())
    if total <= most:
        return dict(end)
    return {
        partition: start.get(partition, 0) + max(1, most * size // total) if size else end[partition]
        for partition, size in behind.items()
    }


class TriggerDelay:
    """Says whether a trigger should wait until there is more to read; the first one never does."""

    def __init__(self, least: int | None, longest_ms: int) -> None:
        self._least = least
        self._longest_ms = longest_ms
        self._last_ms = -inf

    def is_too_early(self, new: int, now_ms: float) -> bool:
        """Whether `new` offsets are not worth a batch yet."""
        if self._least is None:
            return False
        if new >= self._least or now_ms - self._last_ms >= self._longest_ms:
            self._last_ms = now_ms
            return False
        return True
