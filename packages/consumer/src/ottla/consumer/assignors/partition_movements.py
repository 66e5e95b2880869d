"""The partitions that were moved between members while an assignment was balanced."""

from __future__ import annotations

from collections import defaultdict

from ottla.consumer.assignors.java_hash_map_order import hash_order, partition_hash
from ottla.protocol.topics import TopicPartition

_Pair = tuple[str, str]


class PartitionMovements:
    """Prevents members from swapping partitions of one topic, which improves nothing.

    To move one from A to B after another one of the topic moved from B to A, that other one moves back.
    """

    def __init__(self) -> None:
        self._pair: dict[TopicPartition, _Pair] = {}
        self._moved: dict[tuple[str, _Pair], dict[TopicPartition, None]] = defaultdict(dict)
        self._most: dict[tuple[str, _Pair], int] = defaultdict(int)

    def instead_of(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move instead of `partition`; usually that one itself."""
        if partition in self._pair:
            source = self._pair[partition][0]
        key = (partition.topic, (target, source))
        if not self._moved.get(key):
            return partition
        return hash_order(self._moved[key], partition_hash, self._most[key])[0]

    def moved(self, partition: TopicPartition, source: str, target: str) -> None:
        """Record a move; a move back to the original member removes the record."""
        before = self._pair.pop(partition, None)
        if before is not None:
            key = (partition.topic, before)
            del self._moved[key][partition]
            if not self._moved[key]:
                del self._moved[key], self._most[key]
            source = before[0]
        if source != target:
            self._remember(partition, (source, target))

    def _remember(self, partition: TopicPartition, pair: _Pair) -> None:
        key = (partition.topic, pair)
        self._pair[partition] = pair
        self._moved[key][partition] = None
        self._most[key] = max(self._most[key], len(self._moved[key]))
