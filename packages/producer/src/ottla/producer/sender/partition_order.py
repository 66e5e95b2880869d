"""Whether a batch may be sent while others of its partition are in flight, as far as leaders decide it. Pure.

A log that has no batch of a producer accepts any sequence of it. So where a topic may have been deleted and
created again, sequences alone do not keep the order: the first batch could be refused by a broker that is not
the leader yet, and the second one be written.
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
