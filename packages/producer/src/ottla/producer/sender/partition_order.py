"""Whether a batch of a partition may be sent now, as far as its leaders decide it. Pure.

A log that has no batch of a producer accepts any sequence of it. So where a topic may have been deleted and
created again, sequences alone do not keep the order: the first batch could be refused by a broker that is not
the leader yet, and the second one be written.

A leader that refused a batch, or was not reached, gets no further one until metadata name another leader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.producer.accumulator import Batch, Queue
from ottla.protocol.topics import TopicPartition

# A topic is not deleted and created again within this time.
_SAME_LOG_MS: Final = 100.0
_SWEEP_MS: Final = 1_000.0

_AT_ONCE: Final = 3
"""So many retries of a batch do not wait: two brokers that each name the other get no more of them."""


@dataclass(slots=True)
class _Flights:
    """The batches of one partition that are in flight, or ended shortly ago."""

    queue: Queue
    leader: int
    is_first: bool
    """One batch is in flight, and nothing shows that the log knows this producer."""
    ended_ms: float


class PartitionOrder:
    """Batches of a partition are in flight to one leader only, and after a pause the first of them alone."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._flights: dict[TopicPartition, _Flights] = {}
        self._swept_ms = 0.0

    def may_follow(self, batch: Batch, leader: int) -> bool:
        """Whether a batch may be sent to a leader now."""
        if not batch.queue.in_flight:
            return True
        flights = self._flights.get(batch.partition)
        return flights is None or (flights.leader == leader and not flights.is_first)

    def leader_asked(self, partition: TopicPartition) -> int | None:
        """Return the leader that batches of a partition are in flight to, or were a moment ago."""
        flights = self._flights.get(partition)
        return None if flights is None else flights.leader

    def sent(self, batch: Batch, leader: int) -> None:
        """Note that a batch, which counts as in flight, is sent to a leader."""
        flights = self._flights.get(batch.partition)
        if flights is None:
            self._flights[batch.partition] = _Flights(batch.queue, leader, True, 0.0)
        elif batch.queue.in_flight == 1:
            flights.leader = leader
            flights.is_first = self._now_ms() - flights.ended_ms > _SAME_LOG_MS

    def ended(self, batch: Batch) -> None:
        """Note that a batch was answered, or failed."""
        flights = self._flights.get(batch.partition)
        if flights is not None and not batch.queue.in_flight:
            flights.is_first, flights.ended_ms = False, self._now_ms()

    def forget_idle(self) -> None:
        """Forget partitions whose next batch is a first one anyway; at most once a second."""
        now_ms = self._now_ms()
        if now_ms - self._swept_ms < _SWEEP_MS:
            return
        self._swept_ms = now_ms
        self._flights = {
            partition: flights
            for partition, flights in self._flights.items()
            if flights.queue.in_flight or flights.ended_ms + _SAME_LOG_MS >= now_ms
        }


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
