"""The controller's view of the cluster: brokers, topics, leaderships, states of partitions and replicas."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen, replace
from ottla.zookeeper.znodes import BrokerFeature

NO_LEADER = -1
LEADER_DURING_DELETION = -2
"""The leader in UpdateMetadata for a partition of a topic that is being deleted."""
EPOCH_DURING_DELETION = -2
"""The leader epoch of a StopReplica that deletes: newer than any."""

Replica = tuple[TopicPartition, int]


class PartitionState(Enum):
    """The states of a partition in the controller."""

    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class ReplicaState(Enum):
    """The states of one replica in the controller."""

    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


_P, _R = PartitionState, ReplicaState

PARTITION_TRANSITIONS: Mapping[PartitionState, frozenset[PartitionState]] = {
    _P.NEW: frozenset({_P.NON_EXISTENT}),
    _P.ONLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.OFFLINE: frozenset({_P.NEW, _P.ONLINE, _P.OFFLINE}),
    _P.NON_EXISTENT: frozenset({_P.OFFLINE}),
}
"""For each partition state, the states it may be entered from."""

REPLICA_TRANSITIONS: Mapping[ReplicaState, frozenset[ReplicaState]] = {
    _R.NEW: frozenset({_R.NON_EXISTENT}),
    _R.ONLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.OFFLINE: frozenset({_R.NEW, _R.ONLINE, _R.OFFLINE, _R.DELETION_INELIGIBLE}),
    _R.DELETION_STARTED: frozenset({_R.OFFLINE}),
    _R.DELETION_SUCCESSFUL: frozenset({_R.DELETION_STARTED}),
    _R.DELETION_INELIGIBLE: frozenset({_R.OFFLINE, _R.DELETION_STARTED}),
    _R.NON_EXISTENT: frozenset({_R.DELETION_SUCCESSFUL}),
}
"""For each replica state, the states it may be entered from."""


class IllegalTransition(AssertionError):
    """The present state of a partition or replica does not lead to the wanted one."""


@frozen
class Endpoint:
    """One address of a broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@frozen
class LiveBroker:
    """A registered broker; `epoch` is the czxid of its registration (KIP-380)."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    features: Mapping[str, BrokerFeature] = field(default_factory=dict)
    """The features that it supports; a broker of Apache Kafka none."""


@frozen
class Topic:
    """A topic as its znode describes it."""

    id: uuid.UUID
    partitions: Mapping[int, Assignment]


@dataclass(slots=True, eq=False, repr=False)
class Stopping:
    """The replicas that a moved partition has left, and the brokers that have not deleted theirs yet."""

    replicas: tuple[int, ...]
    awaited: set[int]


@dataclass(slots=True, eq=False, repr=False)
class ControllerContext:
    """The controller's memory. One task owns it; it holds nothing that ZooKeeper does not hold."""

    controller_id: int
    epoch: int
    live: dict[int, LiveBroker] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    topics: dict[str, Topic] = field(default_factory=dict)
    leaderships: dict[TopicPartition, Leadership] = field(default_factory=dict)
    unreadable: set[TopicPartition] = field(default_factory=set)
    """Partitions whose state znode cannot be read: they are set aside, without a leader, until it can."""
    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    new_partitions: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions in `PartitionState.NEW`, in the order in which they entered it."""
    replica_states: dict[Replica, ReplicaState] = field(default_factory=dict)
    failed_replicas: set[Replica] = field(default_factory=set)
    """Replicas on a log directory that their broker reported as failed, or as full."""
    lost_replicas: set[Replica] = field(default_factory=set)
    """Failed replicas of the ISR that their broker reported although no other replica leads: none comes back
    but by a repair. One without room is offered then: it has all acknowledged records."""
    deleting: set[str] = field(default_factory=set)
    deletions_waiting: set[str] = field(default_factory=set)
    """Topics marked for deletion of which a partition is being reassigned: they are deleted after that."""
    reassigning: set[TopicPartition] = field(default_factory=set)
    """Partitions to which replicas are being added, or from which some are being removed."""
    stopping: dict[TopicPartition, Stopping] = field(default_factory=dict)
    """Partitions that have moved, until the replicas they left are deleted and the znode says so."""
    isr_moved: set[TopicPartition] = field(default_factory=set)
    """Partitions being reassigned whose ISR was written or read since it was last looked at."""

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether a topic has that partition."""
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition in topic.partitions

    def assignment(self, partition: TopicPartition) -> Assignment:
        """The replicas of a known partition."""
        return self.topics[partition.topic].partitions[partition.partition]

    def assign(self, assignments: Mapping[TopicPartition, Assignment]) -> None:
        """Replace the assignments of known partitions."""
        by_topic: dict[str, dict[int, Assignment]] = {}
        for partition, assignment in assignments.items():
            by_topic.setdefault(partition.topic, {})[partition.partition] = assignment
            (self.reassigning.add if assignment.is_reassigning else self.reassigning.discard)(partition)
        for name, changed in by_topic.items():
            topic = self.topics[name]
            self.topics[name] = replace(topic, partitions={**topic.partitions, **changed})

    def store_leadership(self, partition: TopicPartition, leadership: Leadership) -> None:
        """Remember what the state znode of a partition holds."""
        self.leaderships[partition] = leadership
        if partition in self.reassigning:
            self.isr_moved.add(partition)

    def is_moving(self, topic: str) -> bool:
        """Whether a partition of that topic is being reassigned."""
        return any(partition.topic == topic for partition in (*self.reassigning, *self.stopping))

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic; none when it is unknown."""
        known = self.topics.get(topic)
        return [TopicPartition(topic, number) for number in known.partitions] if known else []

    def partitions(self) -> Iterator[TopicPartition]:
        """Every known partition."""
        return (partition for topic in self.topics for partition in self.partitions_of(topic))

    def partitions_on(self, brokers: Iterable[int]) -> list[TopicPartition]:
        """The partitions with a replica on any of the given brokers."""
        wanted = set(brokers)
        return [p for p in self.partitions() if wanted.intersection(self.assignment(p).replicas)]

    def replicas_of(self, topic: str) -> list[Replica]:
        """Every replica of a topic."""
        return [(p, broker) for p in self.partitions_of(topic) for broker in self.assignment(p).replicas]

    def is_alive(self, partition: TopicPartition, broker: int) -> bool:
        """Whether that broker is alive and its log of that partition is usable."""
        return broker in self.live and (partition, broker) not in self.failed_replicas

    def may_lead_again(self, partition: TopicPartition, broker: int) -> bool:
        """Whether a replica is on a live broker that has not reported it as lost for good."""
        return broker in self.live and (partition, broker) not in self.lost_replicas

    def mark_failed(self, replica: Replica, *, for_good: bool) -> None:
        """A broker reported a replica as failed."""
        self.failed_replicas.add(replica)
        if for_good:
            self.lost_replicas.add(replica)

    def mark_usable(self, replica: Replica) -> None:
        """A broker reported a replica as usable, or has it no more."""
        self.failed_replicas.discard(replica)
        self.lost_replicas.discard(replica)

    def is_deleting(self, partition: TopicPartition) -> bool:
        """Whether the partition's topic is being deleted."""
        return partition.topic in self.deleting

    def state(self, partition: TopicPartition) -> PartitionState:
        """The partition's state, NON_EXISTENT when it is unknown."""
        return self.partition_states.get(partition, PartitionState.NON_EXISTENT)

    def replica_state(self, partition: TopicPartition, broker: int) -> ReplicaState:
        """The replica's state, NON_EXISTENT when it is unknown."""
        return self.replica_states.get((partition, broker), ReplicaState.NON_EXISTENT)

    def move_partition(self, partition: TopicPartition, target: PartitionState) -> None:
        """Enter a state, or raise `IllegalTransition`."""
        present = self.state(partition)
        if present not in PARTITION_TRANSITIONS[target]:
            raise IllegalTransition(f"{partition}: {present.value} -> {target.value}")
        self.enter_state(partition, target)

    def enter_state(self, partition: TopicPartition, state: PartitionState) -> None:
        """Enter a state from any other."""
        if state is PartitionState.NON_EXISTENT:
            self.partition_states.pop(partition, None)
        else:
            self.partition_states[partition] = state
        if state is PartitionState.NEW:
            self.new_partitions[partition] = None
        else:
            self.new_partitions.pop(partition, None)

    def move_replica(self, partition: TopicPartition, broker: int, target: ReplicaState) -> None:
        """Enter a state, or raise `IllegalTransition`."""
        present = self.replica_state(partition, broker)
        if present not in REPLICA_TRANSITIONS[target]:
            raise IllegalTransition(f"{partition} on {broker}: {present.value} -> {target.value}")
        if target is ReplicaState.NON_EXISTENT:
            self.replica_states.pop((partition, broker), None)
        else:
            self.replica_states[(partition, broker)] = target

    def set_aside(self, partition: TopicPartition) -> None:
        """Treat a partition as one without a state, and do not create one."""
        self.leaderships.pop(partition, None)
        self.unreadable.add(partition)
        self.enter_state(partition, PartitionState.NEW)

    def forget_partition(self, partition: TopicPartition) -> None:
        """Drop everything known of a partition whose topic is known."""
        self.leaderships.pop(partition, None)
        self.unreadable.discard(partition)
        self.enter_state(partition, PartitionState.NON_EXISTENT)
        self.reassigning.discard(partition)
        self.stopping.pop(partition, None)
        self.isr_moved.discard(partition)
        for broker in self.assignment(partition).replicas:
            self.forget_replica(partition, broker)

    def forget_replica(self, partition: TopicPartition, broker: int) -> None:
        """Drop all facts about a replica that was removed from the assignment."""
        self.replica_states.pop((partition, broker), None)
        self.mark_usable((partition, broker))

    def forget_topic(self, topic: str) -> None:
        """Drop everything known of a topic."""
        for partition in self.partitions_of(topic):
            self.forget_partition(partition)
        self.topics.pop(topic, None)
        self.deleting.discard(topic)
        self.deletions_waiting.discard(topic)
