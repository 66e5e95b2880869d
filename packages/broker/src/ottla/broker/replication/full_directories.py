"""The replicas in log directories without room: which of them this broker gives up, and takes back.

The controller learns of them as of those in a failed directory (KIP-112): a notification in ZooKeeper makes
it repeat LeaderAndIsr, and KAFKA_STORAGE_ERROR in the answer makes it elect another leader and take the
replica out of the ISR. NO_ERROR in a later answer lets the replica back. An Apache Kafka controller does the
same.

- Only a replica that another live member of the ISR can stand in for is given up. The last member leads on,
  with reads and without writes: it alone has all acknowledged records.
- A leader with an ISR that is proposed and not confirmed is not given up yet, and on a full disk it proposes
  no smaller ISR: the controller would take the answer for that of the last member.
- A member of the ISR is not given up while no replica leads: it is asked for as the last one.
- A replica that was given up keeps its records, and copies no more until there is room.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.replication.partition import NO_LEADER, Role
from ottla.broker.runtime.loop_budget import EndOfSlice, slices
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.broker.replication.partition import Assignment
    from ottla.protocol.topics import TopicPartition

_APPLIED = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)
"""The outcomes of a role that this broker has now, or had before."""
MOST_REPEATS: Final = 2
"""How often a log that could not be created is asked for; its topic may be deleted, or moved."""


class FullDirectories:
    """Decides the answers to the controller about replicas. Pure, but for the partitions that it reads."""

    def __init__(self, broker_id: int, is_alive: Callable[[int], bool]) -> None:
        self._broker_id = broker_id
        self._is_alive = is_alive
        self._full: set[str] = set()
        """By name: the hash of a new path costs more than all else, and there are thousands of partitions."""
        self._with_room: set[str] = set()
        """Full directories that took writes when they were last looked at."""
        self._given_up: set[TopicPartition] = set()
        """Replicas whose last answer was KAFKA_STORAGE_ERROR."""
        self._taken_back: set[TopicPartition] = set()
        """Replicas that were given up in the leader epoch that they have, and are no longer."""
        self._repeats: dict[TopicPartition, int] = {}
        """How often a given-up replica without a log was news since it was assigned."""

    def note(self, directory: Path, *, is_full: bool) -> None:
        """A directory is full, or has room again."""
        (self._full.add if is_full else self._full.discard)(str(directory))
        self._with_room.discard(str(directory))

    def note_room(self, directories: Iterable[Path]) -> None:
        """These directories, of those that are full, take writes by now."""
        self._with_room = set(map(str, directories))

    def keeps_isr(self, partition: HostedPartition) -> bool:
        """Return whether a leader proposes no smaller ISR: it takes no writes, or is given up."""
        if not self.holds(partition.log):
            return False
        takes_writes = os.path.dirname(partition.log.directory) in self._with_room
        return not takes_writes or partition.topic_partition in self._given_up

    def holds(self, log: Log) -> bool:
        """Return whether a log is in a full directory."""
        return bool(self._full) and os.path.dirname(log.directory) in self._full

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
        self._repeats.pop(topic_partition, None)
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
        self._repeats.pop(topic_partition, None)

    def is_due(self, hosted: Mapping[TopicPartition, HostedPartition]) -> Generator[EndOfSlice, None, bool]:
        """Return, after steps, whether the controller would get other answers to its assignments.

        It is then made to repeat them, which counts as one attempt for the logs that could not be created.
        """
        is_due = False
        for some in slices(list(self._given_up)):
            for name in some:
                partition = hosted.get(name)
                is_due |= self._is_wanted(name) if partition is None else self._is_back(partition)
            yield EndOfSlice()
        if is_due or not self._full:
            return is_due
        for held in slices(list(hosted.items())):
            if any(self._is_lost(name, partition) for name, partition in held):
                return True
            yield EndOfSlice()
        return False

    def _is_wanted(self, name: TopicPartition) -> bool:
        """Whether a log that found no room is to be created now, if it is still assigned."""
        if self._full or name not in self._given_up:
            return False
        self._repeats[name] = repeats = self._repeats.get(name, 0) + 1
        if repeats > MOST_REPEATS:
            self.forget(name)
        return repeats <= MOST_REPEATS

    def _is_lost(self, name: TopicPartition, partition: HostedPartition) -> bool:
        # Where it leads still, the controller has not had the answer, or could not elect another leader.
        return (name not in self._given_up or partition.leads) and self._can_give_up(partition)

    def _is_back(self, partition: HostedPartition) -> bool:
        if partition.core.role is Role.NONE:  # stopped by an Apache Kafka controller, which assigns it again
            return not self.holds(partition.log)
        return partition.core.proposal is None and not self._can_give_up(partition)

    def _can_give_up(self, partition: HostedPartition) -> bool:
        core = partition.core
        if core.role is Role.NONE or core.proposal is not None or not self.holds(partition.log):
            return False
        if self._broker_id not in core.isr:
            return True
        if core.role is Role.FOLLOWER and core.leader == NO_LEADER:
            return False
        return any(member != self._broker_id and self._is_alive(member) for member in core.isr)
