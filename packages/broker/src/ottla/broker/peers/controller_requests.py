"""The requests of a broker to the active controller, and the controller's answers. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen


@frozen
class ControlledShutdown:
    """A broker shuts down and asks to have its leaderships moved."""

    broker_id: int
    broker_epoch: int


@frozen
class ProposedIsr:
    """The ISR that a leader proposes, and the epochs that it knows."""

    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: Mapping[int, int] = field(default_factory=dict)
    """Of members, as the leader knows them (KIP-903); -1 or absent for an unknown one."""
    is_recovering: bool = False
    """Whether the leader still recovers from an unclean election (KIP-704)."""


@frozen
class AlterPartition:
    """A leader asks for new ISRs (KIP-497)."""

    broker_id: int
    broker_epoch: int
    proposals: Mapping[TopicPartition, ProposedIsr]


@dataclass(slots=True, eq=False, repr=False)
class Answers:
    """The error of each partition of a request; 0 is success."""

    top: int = 0
    message: str | None = None
    """The text beside the error of the request as a whole."""
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    leaderships: dict[TopicPartition, Leadership] = field(default_factory=dict)
    remaining: list[TopicPartition] = field(default_factory=list)
    messages: dict[TopicPartition, str] = field(default_factory=dict)
    reassignments: dict[TopicPartition, Assignment] = field(default_factory=dict)
