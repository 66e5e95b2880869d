"""The replicas in log directories without room: which of them this broker gives up, and takes back.

The controller learns of them as of those in a failed directory (KIP-112): a notification in ZooKeeper makes
it repeat LeaderAndIsr, and KAFKA_STORAGE_ERROR in the answer makes it elect another leader and take the
replica out of the ISR. NO_ERROR in a later answer lets the replica back. An Apache Kafka controller does the
same.

- Only a replica that another live member of the ISR can stand in for is given up. The last member leads on,
  with reads and without writes: it alone has all acknowledged records.
- A leader with an ISR that is proposed and not confirmed is not given up yet, and on a full disk it proposes
  no smaller ISR: the controller would take the answer for that of the last member.
- A replica that was given up keeps its records, and copies no more until there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.replication.partition import Role
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.replication.partition import Assignment
    from ottla.protocol.topics import TopicPartition

_APPLIED = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
"""The outcomes of a role that this broker has now, or had before."""


class FullDirectories:
    """Decides what the controller is told about replicas. Pure, but for the partitions that it reads."""

    def __init__(self, broker_id: int, is_alive: Callable[[int], bool]) -> None:
        self._broker_id = broker_id
        self._is_alive = is_alive
        self._full: set[Path] = set()
        self._given_up: set[TopicPartition] = set()
        """Replicas whose last answer was KAFKA_STORAGE_ERROR."""
        self._taken_back: set[TopicPartition] = set()
        """Replicas that were given up in the leader epoch that they have, and are no longer."""

    def note(self, directory: Path, *, is_full: bool) -> None:
        """A directory is full, or has room again."""
        (self._full.add if is_full else self._full.discard)(directory)

    def holds(self, log: Log) -> bool:
        """Return whether a log is in a full directory."""
        return bool(self._full) and log.directory.parent in self._full

    def answer(
        self,
        topic_partition: TopicPartition,
        partition: HostedPartition | None,
        assignment: Assignment,
        outcome: ErrorCode,
    ) -> ErrorCode:
        """Return the answer to an assignment with that outcome."""
        if not self._full and topic_partition not in self._given_up and not self._taken_back:
            return outcome
        if partition is None:
            # A log that could not be created for want of room is created once the request comes again.
            is_lost = outcome is ErrorCode.KAFKA_STORAGE_ERROR and bool(self._full)
            (self._given_up.add if is_lost else self._given_up.discard)(topic_partition)
            return outcome
        if outcome not in _APPLIED or assignment.leader_epoch != partition.leader_epoch:
            return outcome
        if self._can_give_up(partition):
            self._given_up.add(topic_partition)
            self._taken_back.discard(topic_partition)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return self._taken(topic_partition, outcome)

    def _taken(self, topic_partition: TopicPartition, outcome: ErrorCode) -> ErrorCode:
        """Return NONE also for a known role, where it was given up: the controller counts on it again."""
        if topic_partition in self._given_up:
            self._given_up.discard(topic_partition)
            self._taken_back.add(topic_partition)
        elif outcome is ErrorCode.NONE:
            self._taken_back.discard(topic_partition)
        return ErrorCode.NONE if topic_partition in self._taken_back else outcome

    def forget(self, topic_partition: TopicPartition) -> None:
        """A partition is deleted here."""
        self._given_up.discard(topic_partition)
        self._taken_back.discard(topic_partition)

    def is_due(self, hosted: Mapping[TopicPartition, HostedPartition]) -> bool:
        """Return whether the controller has to repeat its assignments: it would get other answers."""
        is_lost = self._full and any(
            # Where it leads still, the controller has not had the answer, or could not elect another leader.
            (name not in self._given_up or partition.leads) and self._can_give_up(partition)
            for name, partition in hosted.items()
        )
        return bool(is_lost) or any(self._is_back(hosted.get(name)) for name in self._given_up)

    def _is_back(self, partition: HostedPartition | None) -> bool:
        if partition is None:
            return not self._full
        if partition.core.role is Role.NONE:  # stopped by an Apache Kafka controller, which assigns it again
            return not self.holds(partition.log)
        return partition.core.proposal is None and not self._can_give_up(partition)

    def _can_give_up(self, partition: HostedPartition) -> bool:
        core = partition.core
        if core.role is Role.NONE or core.proposal is not None or not self.holds(partition.log):
            return False
        if self._broker_id not in core.isr:
            return True
        return any(member != self._broker_id and self._is_alive(member) for member in core.isr)
