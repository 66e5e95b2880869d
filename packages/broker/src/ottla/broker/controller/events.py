"""The events of a controller, and its effects on ZooKeeper and on brokers. Plain data.

A step of the machine is a generator: it yields effects, is sent the result of each, and returns the answer to
the event.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import field
from typing import Any, TypeVar

from ottla.broker.cluster.features import FeatureUpdate, Members
from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.broker.controller.control_request_batch import ControlRequest, Publish
from ottla.broker.controller.controller_context import LiveBroker, Topic
from ottla.broker.peers.controller_requests import AlterPartition, ControlledShutdown
from ottla.broker.runtime.loop_budget import EndOfSlice
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse

# ---- events


@frozen
class PartitionStates:
    """The state znodes of partitions: what they hold, and which of them cannot be read."""

    leaderships: Mapping[TopicPartition, Leadership] = field(default_factory=dict)
    unreadable: frozenset[TopicPartition] = frozenset()


@frozen
class Elected:
    """This broker became the controller; with everything that ZooKeeper holds."""

    brokers: Mapping[int, LiveBroker]
    topics: Mapping[str, Topic]
    states: PartitionStates
    deletions: frozenset[str] = frozenset()


@frozen
class BrokersRead:
    """The registered brokers, as of now."""

    brokers: Mapping[int, LiveBroker]


@frozen
class TopicsRead:
    """All topics, and the deletion markers that were read just before.

    `states` are those of the partitions whose state was unreadable, read again.
    """

    topics: Mapping[str, Topic]
    deletions: frozenset[str] = frozenset()
    states: PartitionStates = field(default_factory=PartitionStates)


@frozen
class ReplyReceived:
    """A broker responded to a request of this controller."""

    broker: LiveBroker
    request: ControlRequest
    response: ControlResponse


@frozen
class ElectLeaders:
    """A request for leader elections; None means every partition."""

    partitions: frozenset[TopicPartition] | None
    unclean: bool = False


@frozen
class UncleanElectionAllowed:
    """A topic, or None for the default of all topics, now allows unclean elections."""

    topic: str | None


@frozen
class BalanceLeaders:
    """Check whether more than the allowed share of partitions is not led by the preferred replica."""

    allowed_imbalance: float


@frozen
class AlterReassignments:
    """A request to move partitions to these replicas, or with None back to those before the move (KIP-455).

    `from_znode`: the request was read from the old tool's znode.
    """

    targets: Mapping[TopicPartition, tuple[int, ...] | None]
    from_znode: bool = False


@frozen
class ListReassignments:
    """A request for the partitions that are being moved: of these, or with None of all."""

    partitions: frozenset[TopicPartition] | None = None


@frozen
class StatesRead:
    """State znodes that another writer announced, as of now."""

    states: PartitionStates


@frozen
class ReplicasFailed:
    """A broker lost a log directory: it must be asked which replicas it lost."""

    broker_id: int


@frozen
class UpdateFeatures:
    """A request for levels of features: all of them or, with `validate_only`, none."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@frozen
class DeletionsGoOn:
    """More topics are to be removed whose replicas are all deleted: one event removes some of them."""


Event = (
    Elected
    | BrokersRead
    | TopicsRead
    | ReplyReceived
    | ElectLeaders
    | UncleanElectionAllowed
    | ControlledShutdown
    | AlterPartition
    | BalanceLeaders
    | AlterReassignments
    | ListReassignments
    | StatesRead
    | ReplicasFailed
    | UpdateFeatures
    | DeletionsGoOn
)

# ---- effects and their results


@frozen
class WriteLeaderships:
    """Write state znodes, each at its `partition_epoch`; -1 creates it. The controller epoch fences all."""

    leaderships: Mapping[TopicPartition, Leadership]


@frozen
class WriteResult:
    """The content of a state znode after a write.

    `ours` is false after a conflict, when another writer was first; `leadership` is None without a znode,
    and when the znode is unreadable.
    """

    leadership: Leadership | None
    ours: bool
    unreadable: bool = False


WriteResults = Mapping[TopicPartition, WriteResult]


@frozen
class WriteAssignments:
    """Write the replicas of these partitions into their topics' znodes; the controller epoch fences all.

    The result is the partitions that were written: not those of topics that no longer exist.
    """

    assignments: Mapping[TopicPartition, Assignment]


@frozen
class DropReassignments:
    """Remove partitions from the old tool's znode: they have moved, or another request replaces this one."""

    partitions: frozenset[TopicPartition]


@frozen
class ReadUncleanTopics:
    """Read which of these topics allow unclean elections: the result is a frozenset of their names."""

    topics: frozenset[str]


@frozen
class DeleteTopics:
    """Remove the znodes of topics; of each one its own, then its configuration, then its marker."""

    topics: tuple[str, ...]


@frozen
class Later:
    """Process an event behind those that are there by now."""

    event: Event


@frozen
class DropMarker:
    """Remove the deletion marker of a topic that does not exist."""

    topic: str


@frozen
class LeaderElected:
    """A leader was elected, to be counted and logged."""

    partition: TopicPartition
    leadership: Leadership
    unclean: bool = False


@frozen
class WriteFeatures:
    """Write levels of features, and which of them are suspended because of a live broker.

    The result is the reason why the levels cannot be had, None after a success.
    """

    members: Members
    updates: tuple[FeatureUpdate, ...] = ()
    validate_only: bool = False


Effect = (
    WriteLeaderships
    | WriteAssignments
    | DropReassignments
    | ReadUncleanTopics
    | Publish
    | DeleteTopics
    | Later
    | DropMarker
    | LeaderElected
    | WriteFeatures
    | EndOfSlice
)

T = TypeVar("T")
Steps = Generator[Effect, Any, T]
