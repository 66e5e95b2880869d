"""The members of a consumer group: a value for each, and the records that a member is stored in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.assigned.topics import kept_once
from ottla.broker.groups.kinds import KindRecord, tombstones_of_member
from ottla.protocol.stored_groups import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
)
from ottla.zookeeper.frozen_classes import frozen, replace

if TYPE_CHECKING:
    from ottla.broker.groups.assigned.assignors import Assignment

PartitionEpochs: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic, each with the epoch in which it was assigned to the member."""

NO_PARTITIONS: Final[PartitionEpochs] = {}
JOINING: Final = 0
LEAVING: Final = -1
LEAVING_STATIC: Final = -2
"""The epoch of a static member that will come back: its partitions stay its own."""


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment, with the numbers of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has not yet given up what another member shall have."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not yet given up."""
    UNKNOWN = 127
    """The state is one that a newer coordinator wrote."""


class Wait(StrEnum):
    """The kinds of deadlines of a member."""

    SESSION = "session"
    REBALANCE = "rebalance"
    """It must have given up partitions, in the epoch that it had."""
    JOIN = "join"
    """A classic member must join again."""
    SYNC = "sync"
    """A classic member must ask for its assignment."""


@frozen
class ClassicProtocols:
    """The session timeout and the subscriptions of a member that joined by the classic protocol."""

    session_timeout_ms: int
    supported: tuple[tuple[str, bytes], ...]


@frozen(kw_only=True)
class ConsumerMember:
    """One member. Its epoch is the one of the assignment that it has, or is about to have."""

    member_id: str
    epoch: int = JOINING
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    expression: str = ""
    assignor: str | None = None
    assigned: PartitionEpochs = NO_PARTITIONS
    revoking: PartitionEpochs = NO_PARTITIONS
    """The partitions that it still has and shall give up."""
    classic: ClassicProtocols | None = None
    """Set for a member of the classic protocol."""

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has all that it shall have in this assignment epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def waits_for(self, epoch: int) -> bool:
        """Whether the next heartbeat may bring the member nearer to a group epoch, without its own doing.

        A member that must give up something sends one at once when it has done so.
        """
        return self.state is not MemberState.UNREVOKED_PARTITIONS and not self.is_reconciled_to(epoch)

    def assigned_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """Return the epoch in which a partition was assigned; None for one that is not the member's."""
        for partitions in (self.assigned, self.revoking):
            if (epoch := partitions.get(topic_id, {}).get(partition)) is not None:
                return epoch
        return None


def moved_to(
    member: ConsumerMember, epoch: int, state: MemberState, **partitions: PartitionEpochs
) -> ConsumerMember:
    """Return the member in an epoch, which may be its present one, with changed partitions."""
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, **partitions)


def without_epochs(partitions: PartitionEpochs) -> Assignment:
    """Return the partitions alone."""
    return {topic_id: frozenset(epochs) for topic_id, epochs in partitions.items()}


# ---- records


def member_record(group_id: str, member: ConsumerMember) -> KindRecord:
    """Return the record of a member's client and subscription."""
    classic = member.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.expression,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None
        if classic is None
        else ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.supported
            ],
        ),
    )
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return KindRecord(group_id, key, value)


def with_metadata(member: ConsumerMember, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    """Return the member with client and subscription of a record."""
    classic = value.classic_member_metadata
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=kept_once(value.subscribed_topic_names),
        expression=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicProtocols(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def assignment_record(group_id: str, member: ConsumerMember) -> KindRecord:
    """Return the record of what a member has."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_stored(member.assigned),
        partitions_pending_revocation=_stored(member.revoking),
    )
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return KindRecord(group_id, key, value)


def _stored(partitions: PartitionEpochs) -> list[AssignedTopicPartitions]:
    return [
        AssignedTopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in partitions.items()
    ]


def with_assignment(
    member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue | None
) -> ConsumerMember:
    """Return the member with the partitions of a record; with none, and leaving, for a tombstone."""
    if value is None:
        return replace(
            member, epoch=LEAVING, previous_epoch=LEAVING, assigned=NO_PARTITIONS, revoking=NO_PARTITIONS
        )
    known = value.state in MemberState._value2member_map_
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState(value.state) if known else MemberState.UNKNOWN,
        assigned=_read(value.assigned_partitions, value.member_epoch),
        revoking=_read(value.partitions_pending_revocation, value.member_epoch),
    )


def _read(topics: Iterable[AssignedTopicPartitions], member_epoch: int) -> PartitionEpochs:
    """Read partitions with their epochs; those without, as Kafka before 4.3 wrote them, have the member's."""
    read: dict[UUID, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        read[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return read


def target_record(group_id: str, member_id: str, target: Assignment) -> KindRecord:
    """Return the record of what a member shall have."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )
    key = ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return KindRecord(group_id, key, value)


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> KindRecord:
    """Return the record that ends a new target assignment: of its epoch, and when it was made."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms)
    return KindRecord(group_id, ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KindRecord:
    """Return the record of the group's epoch, and of the topics that were there in it."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return KindRecord(group_id, ConsumerGroupMetadataKey(group_id=group_id), value)


def expression_record(
    group_id: str, expression: str, topics: Iterable[str], version: int, wall_ms: int
) -> KindRecord:
    """Return the record of the topics that an expression matches."""
    value = ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=wall_ms)
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return KindRecord(group_id, key, value)


def expression_tombstone(group_id: str, expression: str) -> KindRecord:
    """Return the record that takes an expression back which no member reads by any more."""
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=expression)
    return KindRecord(group_id, key, None)


def member_tombstones(group_id: str, member_id: str) -> list[KindRecord]:
    """Return the records that delete a member: what it has, what it shall have, and itself, in this order."""
    return tombstones_of_member(
        group_id,
        member_id,
        ConsumerGroupCurrentMemberAssignmentKey,
        ConsumerGroupTargetAssignmentMemberKey,
        ConsumerGroupMemberMetadataKey,
    )
