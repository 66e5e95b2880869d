"""Sequence numbers: the producer id and the next sequence of every partition (KIP-98). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.protocol.topics import TopicPartition

NO_PRODUCER_ID = -1
_WRAP = 2**31


@dataclass(slots=True)
class SequenceNumbers:
    """Sequences under one producer id; a new id starts every partition at 0 again."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    _next: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def has_id(self) -> bool:
        """Whether a broker assigned an id."""
        return self.producer_id != NO_PRODUCER_ID

    def start(self, producer_id: int, producer_epoch: int) -> None:
        """Use a new id."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next.clear()

    def continue_as(self, producer_id: int, producer_epoch: int) -> None:
        """Use this id and epoch; sequences start at 0 again if either changed."""
        if (producer_id, producer_epoch) != (self.producer_id, self.producer_epoch):
            self.start(producer_id, producer_epoch)

    def give_up_id(self) -> None:
        """Drop the id: a batch failed, and the next sequence would leave a gap behind it."""
        self.start(NO_PRODUCER_ID, -1)

    def has_numbered(self, topic: str) -> bool:
        """Whether a partition of a topic has sequences under this id."""
        return any(partition.topic == topic for partition in self._next)

    def take(self, partition: TopicPartition, count: int) -> int:
        """Return the base sequence for `count` records, -1 without an id. Sequences wrap after 2147483647."""
        if not self.has_id:
            return -1
        base = self._next.get(partition, 0)
        self._next[partition] = self.after(base, count)
        return base

    @staticmethod
    def after(base: int, count: int) -> int:
        """Return the sequence after `count` records from `base` on."""
        return (base + count) % _WRAP if base >= 0 else -1
