"""Partitions whose leader refused a batch, or was not reached, until metadata name another one. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.producer.accumulator import Batch, Queue
from ottla.protocol.topics import TopicPartition

_AT_ONCE: Final = 3
"""So many retries of a batch do not wait: two brokers that each name the other get no more of them."""


class RefusedLeaders:
    """Says when a batch may be retried before its backoff ends: as soon as it has another leader.

    `leader_asked` returns the leader that a partition's batches were sent to last, `known_leader` the one
    that metadata name; `forget` drops the metadata of a topic.
    """

    def __init__(
        self,
        leader_asked: Callable[[TopicPartition], int | None],
        known_leader: Callable[[TopicPartition], int | None],
        forget: Callable[[str], None],
    ) -> None:
        self._leader_asked = leader_asked
        self._known_leader = known_leader
        self._forget = forget
        self._refused: dict[TopicPartition, tuple[Queue, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._refused)

    @property
    def topics(self) -> set[str]:
        """The topics whose metadata are to be refreshed."""
        return {partition.topic for partition in self._refused}

    def refused(self, batch: Batch) -> bool:
        """Note that the leader of a batch is not, or no more; return whether to retry the batch at once."""
        asked, known = self._leader_asked(batch.partition), self._known_leader(batch.partition)
        if known is not None and known != asked:
            return batch.attempts < _AT_ONCE  # metadata were refreshed while the batch was in flight
        self._forget(batch.partition.topic)
        if asked is not None:
            self._refused[batch.partition] = (batch.queue, asked)
        return False

    def sent(self, batch: Batch) -> None:
        """Note that a batch is being sent, to another leader or because its backoff is over."""
        self._refused.pop(batch.partition, None)

    def refreshed(self, topic: str) -> None:
        """Make the batches of a topic due whose leader is another one by now."""
        for partition, (queue, asked) in list(self._refused.items()):
            if partition.topic == topic and self._known_leader(partition) not in (None, asked):
                del self._refused[partition]
                _make_due(queue)

    def awaits(self, topic: str) -> bool:
        """Whether batches of a topic still wait for another leader."""
        self._refused = {partition: held for partition, held in self._refused.items() if held[0].batches}
        return any(partition.topic == topic for partition in self._refused)


def _make_due(queue: Queue) -> None:
    for batch in queue.batches:
        if not batch.in_flight and batch.attempts <= _AT_ONCE:
            batch.not_before_ms = 0.0
