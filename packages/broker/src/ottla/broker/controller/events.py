"""What can happen to a controller, and what it asks of ZooKeeper and the brokers.

A step of the machine is a generator: it yields effects, is sent each one's result, and returns
the answer for whoever caused the event. Everything here is plain data.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ottla.broker.controller.batch import ControlRequest, Publish
from ottla.broker.controller.model import Leadership, LiveBroker, Topic
from ottla.broker.values import frozen
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import StopReplicaResponse
from ottla.protocol.messages.update_metadata import UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition

ControlResponse = LeaderAndIsrResponse | UpdateMetadataResponse | StopReplicaResponse

# ---- events


@frozen
class Elected:
    """This broker became the controller; everything ZooKeeper holds comes along."""

    brokers: Mapping[int, LiveBroker]
    topics: Mapping[str, Topic]
    leaderships: Mapping[TopicPartition, Leadership]
    deletions: frozenset[str] = frozenset()


@frozen
class BrokersRead:
    """The registered brokers, as of now."""

    brokers: Mapping[int, LiveBroker]


@frozen
class TopicsRead:
    """All topics and the deletion markers that were there just before."""

    topics: Mapping[str, Topic]
    deletions: frozenset[str] = frozenset()


@frozen
class ReplyReceived:
    """A broker answered a request of this controller."""

    broker: LiveBroker
    request: ControlRequest
    response: ControlResponse


@frozen
class ElectLeaders:
    """Somebody asks for leader elections; None means every partition."""

    partitions: frozenset[TopicPartition] | None
    unclean: bool = False


@frozen
class ControlledShutdown:
    """A broker wants to leave and asks to be relieved of its leaderships."""

    broker_id: int
    broker_epoch: int


@frozen
class ProposedIsr:
    """The ISR a leader proposes, and the epochs it believes in."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


@frozen
class AlterPartition:
    """A leader asks for new ISRs (KIP-497)."""

    broker_id: int
    broker_epoch: int
    proposals: Mapping[TopicPartition, ProposedIsr]


@frozen
class BalanceLeaders:
    """Time to look whether too many partitions are led by other than their preferred replica."""

    allowed_imbalance: float


@frozen
class ReplicasFailed:
    """A broker lost a log directory: its replicas have to be asked about again."""

    broker_id: int


Event = (
    Elected
    | BrokersRead
    | TopicsRead
    | ReplyReceived
    | ElectLeaders
    | ControlledShutdown
    | AlterPartition
    | BalanceLeaders
    | ReplicasFailed
)

# ---- effects and their results


@frozen
class WriteLeaderships:
    """Write state znodes, each only at its `partition_epoch`; -1 creates it. All under the epoch fence."""

    leaderships: Mapping[TopicPartition, Leadership]


@frozen
class Written:
    """What the state znode holds after a write: ours with its new version, or somebody else's.

    `ours` is False after a conflict; `leadership` is None when the znode is gone.
    """

    leadership: Leadership | None
    ours: bool


WriteResults = Mapping[TopicPartition, Written]


@frozen
class DeleteTopic:
    """Remove a topic's znode, then its configuration, then its marker."""

    topic: str


@frozen
class DropMarker:
    """Remove the deletion marker of a topic that is not there."""

    topic: str


@frozen
class LeaderElected:
    """Something to count and log: a leader was elected."""

    partition: TopicPartition
    leadership: Leadership
    unclean: bool = False


Effect = WriteLeaderships | Publish | DeleteTopic | DropMarker | LeaderElected

T = TypeVar("T")
Steps = Generator[Effect, Any, T]


@dataclass(slots=True)
class Answers:
    """The error of each partition of a request; 0 is success."""

    top: int = 0
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    leaderships: dict[TopicPartition, Leadership] = field(default_factory=dict)
    remaining: list[TopicPartition] = field(default_factory=list)
