"""Size limits of micro-batches. Pure.

The rules are Spark's: `maxOffsetsPerTrigger` is divided among partitions by their lag, so that no partition
starves; `minOffsetsPerTrigger` waits for more records, but not longer than `maxTriggerDelay`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from ottla.pipeline.source.offset_json import Offsets
from ottla.protocol.topics import TopicPartition


def new_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between two sets of offsets."""
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def limit_batch(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return the end of a batch of at most `most` offsets.

    Each partition gets a share in proportion to its lag, and at least one offset if it has any. So, as in
    Spark, the limit may be exceeded by less than one offset for each partition.
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
    """Delays a trigger until there are enough new offsets; the first one is never delayed."""

    def __init__(self, least: int | None, longest_ms: int) -> None:
        self._least = least
        self._longest_ms = longest_ms
        self._last_ms = -inf

    def is_too_early(self, new: int, now_ms: float) -> bool:
        """Whether the trigger should still wait, with `new` offsets available."""
        if self._least is None:
            return False
        if new >= self._least or now_ms - self._last_ms >= self._longest_ms:
            self._last_ms = now_ms
            return False
        return True
