"""Which partition a record goes to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ottla.protocol.records import murmur2


def partition_for_key(key: bytes, count: int) -> int:
    """Return the partition Kafka's Java clients choose for a key, so that all clients agree."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class StickyPartitioner:
    """Keyed records by their key; others to one partition until its batch is full, then another (KIP-480)."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._stuck: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, count: int, available: Sequence[int]) -> int:
        """Return a partition below `count`; keyless records go to `available` ones when there are any."""
        if key is not None:
            return partition_for_key(key, count)
        stuck = self._stuck.get(topic)
        if stuck is None or stuck >= count or (available and stuck not in available):
            choices = available or range(count)
            stuck = self._stuck[topic] = choices[int(self._chance() * len(choices))]
        return stuck

    def batch_full(self, topic: str) -> None:
        """Choose anew for the next keyless record of a topic."""
        self._stuck.pop(topic, None)
