"""The partitions that a fast path knows, with one target for each that all sessions share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from ottla.protocol.topics import TopicPartition


class Retirable(Protocol):
    """A target of a fast path."""

    def retire(self) -> None:
        """Serve no request any more, and release the partition."""
        ...


T = TypeVar("T", bound=Retirable)


class KnownPartitions(Generic[T]):
    """Targets of one fast path by partition.

    Sessions refer to targets in indexes of their own (`network.session`). A retired target serves nothing:
    retiring it drops the partition from every session at once, however many there are.
    """

    def __init__(self) -> None:
        self._targets: dict[TopicPartition, T] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(self._targets.values())

    def get(self, topic_partition: TopicPartition) -> T | None:
        """Return the target of a partition, or None."""
        return self._targets.get(topic_partition)

    def put(self, topic_partition: TopicPartition, target: T) -> None:
        """Use this target for the partition from now on."""
        self.retire(topic_partition)
        self._targets[topic_partition] = target

    def retire(self, topic_partition: TopicPartition) -> None:
        """Drop a partition from every session."""
        target = self._targets.pop(topic_partition, None)
        if target is not None:
            target.retire()

    def retire_topic(self, topic: str) -> None:
        """Drop a topic's partitions from every session."""
        for known in [topic_partition for topic_partition in self._targets if topic_partition.topic == topic]:
            self.retire(known)

    def leadership_changed(
        self,
        elected: Sequence[tuple[TopicPartition, int]],
        resigned: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        """Drop the partitions that this broker no longer leads, deleted ones among them."""
        for topic_partition, _ in resigned:
            self.retire(topic_partition)
