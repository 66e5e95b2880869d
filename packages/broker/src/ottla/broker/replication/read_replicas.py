"""Consumers that read from a follower: the choice of the replica, and what a follower may serve (KIP-392).

The leader names a replica in the consumer's rack; the consumer fetches there until it hears otherwise. A
follower serves what it knows to be committed, which may be less than what the leader knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.replication.partition import Role
from ottla.broker.replication.replicas import NO_EPOCH, check_epoch
from ottla.protocol.errors import OffsetNotAvailable, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.protocol.topics import TopicPartition

THE_LEADER: Final = -1
RACK_AWARE: Final = "RackAwareReplicaSelector"


class ReadReplicas:
    """Chooses the replica that a consumer reads from, as `replica.selector.class` says.

    `rack_of` gives the rack of a live broker, None for others and for those without one.
    """

    def __init__(
        self, selector: str | None, replicas: Replicas, rack_of: Callable[[int], str | None]
    ) -> None:
        self.by_rack = (selector or "").rpartition(".")[2] == RACK_AWARE
        """Whether the rack of a consumer matters."""
        self._replicas = replicas
        self._rack_of = rack_of

    def preferred(self, partition: HostedPartition, rack: str, offset: int) -> int:
        """Return the replica in the consumer's rack that has the most records, or -1 for the leader itself.

        Only members of the ISR that have the offset count.
        """
        if not self.by_rack or not rack or self._rack_of(self._replicas.broker_id) == rack:
            return THE_LEADER
        core = partition.core
        found = [
            (progress.log_end_offset, broker)
            for broker, progress in core.followers.items()
            if broker in core.isr
            and self._rack_of(broker) == rack
            and progress.log_start_offset <= offset <= progress.log_end_offset
        ]
        return max(found)[1] if found else THE_LEADER

    def for_consumer(self, topic_partition: TopicPartition, leader_epoch: int) -> HostedPartition:
        """Return a partition that is led or followed here. Raises what `Replicas.leader` raises."""
        found = self._replicas.hosted(topic_partition)
        if found is None or found.core.role is not Role.FOLLOWER:
            return self._replicas.leader(topic_partition, leader_epoch)
        if leader_epoch != NO_EPOCH:
            check_epoch(leader_epoch, found.leader_epoch)
        return found


def check_readable(partition: HostedPartition, offset: int) -> None:
    """Check that a follower can serve a consumer at this offset.

    Raises `OffsetNotAvailable` for an offset that this follower will have, or will know to be committed, in a
    moment, and `OffsetOutOfRange` for one that only the leader can judge.
    """
    core, log = partition.core, partition.log
    if core.role is not Role.FOLLOWER or log.log_start_offset <= offset <= core.high_watermark:
        return
    if log.log_start_offset <= offset <= max(log.log_end_offset, core.leader_high_watermark):
        raise OffsetNotAvailable
    raise OffsetOutOfRange
