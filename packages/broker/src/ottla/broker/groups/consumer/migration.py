"""Groups that move between the protocols while their members run (`group.consumer.migration.policy`).

A classic group becomes a consumer group with the first member of the consumer protocol that joins: its
members stay, with what they have, and are served by the classic protocol. When only such members are left,
the group becomes a classic one again, which rebalances. Either way one batch has all records, so a
coordinator finds one or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.classic.group_metadata import CONSUMER_PROTOCOL_TYPE
from ottla.broker.groups.consumer.members import (
    ClassicProtocols,
    ConsumerMember,
    MemberState,
    PartitionEpochs,
    assignment_record,
    epoch_record,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
    without_epochs,
)
from ottla.broker.groups.consumer.stored_group import FIRST_EPOCH
from ottla.broker.groups.kinds import KindRecord, Loaded, StepOutcome
from ottla.broker.groups.records import GroupRecord
from ottla.protocol.errors import GroupIdNotFound
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
    version_of,
)
from ottla.zookeeper.frozen_classes import replace

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.groups.assigned.assignors import Assignment
    from ottla.broker.groups.assigned.topics import GroupTopics
    from ottla.broker.groups.classic.members import GroupMember
    from ottla.broker.groups.consumer.stored_group import StoredConsumerGroup

DISABLED: Final = "disabled"
MOST_MEMBERS: Final = 1_000
"""Members of a group that moves: the records of all are made in one turn of the loop, and are one batch."""
_UPGRADES: Final = frozenset({"upgrade", "bidirectional"})
_DOWNGRADES: Final = frozenset({"downgrade", "bidirectional"})


# ---- to the consumer protocol


class _Claim(NamedTuple):
    """A member with all that it says it has, and the generation in which it got that; -1 if unknown."""

    generation: int
    member: ConsumerMember


def refuse_upgrade(group: Group, policy: str, most: int) -> None:
    """Raise GroupIdNotFound for a classic group that may not become a consumer group."""
    why = None
    if policy not in _UPGRADES:
        why = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        why = "the group does not use the consumer embedded protocol"
    elif group.member_count > most:
        why = "the group size exceeds the consumer group maximum size"
    elif group.member_count > MOST_MEMBERS:
        why = f"it has {group.member_count} members, and at most {MOST_MEMBERS} move while they run"
    if why is not None:
        name = group.group_id
        raise GroupIdNotFound(f"Cannot upgrade classic group {name} to consumer group because {why}.")


def upgrade_records(group: Group, topics: GroupTopics) -> list[KindRecord]:
    """Return the records of the consumer group that a classic group becomes. Raises GroupIdNotFound."""
    # A group whose first rebalance goes on has no generation yet, and no member is ever in epoch 0.
    group_id, generation = group.group_id, max(group.generation, FIRST_EPOCH)
    members = _apart([_upgraded(group, member, generation, topics) for member in group.members])
    read = {name for member in members for name in member.topics}
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, generation, topics.hash_of(read)),
        *(target_record(group_id, member.member_id, without_epochs(member.assigned)) for member in members),
        target_epoch_record(group_id, generation, 0),
        *(assignment_record(group_id, member) for member in members),
    ]


def _apart(claims: Iterable[_Claim]) -> list[ConsumerMember]:
    """Leave each partition to one member: the one that it is assigned to, or that had it last.

    A member that has missed a generation may join with what another one has by now.
    """
    taken: set[tuple[UUID, int]] = set()

    def left(partitions: PartitionEpochs) -> PartitionEpochs:
        free = {
            topic: {index: since for index, since in epochs.items() if (topic, index) not in taken}
            for topic, epochs in partitions.items()
        }
        taken.update((topic, index) for topic, epochs in free.items() for index in epochs)
        return {topic: epochs for topic, epochs in free.items() if epochs}

    newest = [claim.member for claim in sorted(claims, key=attrgetter("generation"), reverse=True)]
    assigned = [left(member.assigned) for member in newest]
    revoking = [left(member.revoking) for member in newest]
    return [
        replace(
            member,
            assigned=kept,
            revoking=given_up,
            state=MemberState.UNREVOKED_PARTITIONS if given_up else MemberState.STABLE,
        )
        for member, kept, given_up in zip(newest, assigned, revoking, strict=True)
    ]


def _upgraded(group: Group, member: GroupMember, epoch: int, topics: GroupTopics) -> _Claim:
    refused = f"Cannot upgrade classic group {group.group_id} to consumer group because "
    metadata = member.metadata(group.protocol_name) or member.protocols[0][1]
    try:
        subscription = ConsumerProtocolSubscription.from_bytes(metadata)
        assignment = ConsumerProtocolAssignment.from_bytes(member.assignment) if member.assignment else None
    except MalformedMessage:
        raise GroupIdNotFound(f"{refused}the embedded consumer protocol is malformed.") from None
    if assignment is not None and assignment.user_data:
        raise GroupIdNotFound(
            f"{refused}an unsupported custom assignor is in use. Please refer to the documentation or switch "
            "to a default assignor before re-attempting the upgrade."
        )
    # A member has what it has joined with until SyncGroup tells it its assignment.
    owned = _by_id(subscription.owned_partitions, epoch, topics)
    assigned = owned if assignment is None else _by_id(assignment.assigned_partitions, epoch, topics)
    upgraded = ConsumerMember(
        member_id=member.member_id,
        epoch=epoch,
        previous_epoch=epoch,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        assigned=assigned,
        revoking={
            topic: {index: since for index, since in epochs.items() if index not in assigned.get(topic, ())}
            for topic, epochs in owned.items()
        },
        classic=ClassicProtocols(member.session_timeout_ms, member.protocols),
    )
    return _Claim(subscription.generation_id, upgraded)


def _by_id(named: Iterable[TopicPartitions], epoch: int, topics: GroupTopics) -> PartitionEpochs:
    return {
        topic_id: dict.fromkeys(topic.partitions, epoch)
        for topic in named
        if (topic_id := topics.id_of(topic.topic)) is not None
    }


# ---- to the classic protocol


def may_downgrade(
    group: StoredConsumerGroup, leaving: Collection[ConsumerMember], *, stays: bool = False
) -> bool:
    """Return whether only members of the classic protocol stay without these, and may be a classic group.

    Very many stay a consumer group, in which they are served as well. One that leaves `stays` where it comes
    back by that protocol at once.
    """
    left = len(group.members) - len(leaving)
    classic = group.classic_count - sum(member.classic is not None for member in leaving)
    config = group.surroundings.config
    return (
        left == classic
        and 0 < left + stays <= min(group.surroundings.limits.max_size, MOST_MEMBERS)
        and config.group_consumer_migration_policy.lower() in _DOWNGRADES
    )


def downgraded_without(
    group: StoredConsumerGroup, leaving: Collection[ConsumerMember], wall_ms: int
) -> StepOutcome | None:
    """Return the step to a classic group without some members; None if others of this protocol stay."""
    if not may_downgrade(group, leaving):
        return None
    gone = {member.member_id for member in leaving}
    staying = [member for member in group.members.values() if member.member_id not in gone]
    return downgraded(group, staying, wall_ms, rebalances=True)


def downgraded(
    group: StoredConsumerGroup,
    members: list[ConsumerMember],
    wall_ms: int,
    *,
    rebalances: bool,
    joining: ConsumerMember | None = None,
) -> StepOutcome:
    """Return the step to a classic group of these members.

    A `joining` one is among them in place of an earlier static member, whose target it has. A group that
    `rebalances` has no leader until it has done so: the next coordinator knows it by that.
    """
    protocol = _protocol_of(members)
    snapshot = GroupSnapshot(
        group_id=group.group_id,
        generation=group.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        leader_id=None if rebalances else members[0].member_id,
        state_since_ms=wall_ms,
        members=tuple(_downgraded(group, member, protocol, rebalances) for member in members),
    )
    records = list(group.tombstones())
    if joining is not None:  # its own records may be in this batch
        records[:0] = member_tombstones(group.group_id, joining.member_id)
    return StepOutcome(
        [*records, GroupRecord(group.group_id, snapshot)],
        successor=Group.restore(snapshot, group.surroundings.limits),
        then=(Loaded(),),
    )


def _protocol_of(members: Iterable[ConsumerMember]) -> str:
    """Return the protocol that all members support and most prefer."""
    supported = [
        [name for name, _ in member.classic.supported] for member in members if member.classic is not None
    ]
    common = set(supported[0]).intersection(*supported)
    votes = Counter(next(name for name in names if name in common) for names in supported)
    return votes.most_common(1)[0][0]


def _downgraded(
    group: StoredConsumerGroup, member: ConsumerMember, protocol: str, rebalances: bool
) -> MemberSnapshot:
    """Return a member of the classic group: with what it has where that rebalances, else with its target.

    The group may be a consumer group again before that rebalance has ended: what members have stays theirs.
    """
    classic = member.classic
    assert classic is not None
    metadata = dict(classic.supported)[protocol]
    target = _present(member) if rebalances else group.target_of(member.member_id, member.instance_id)
    return MemberSnapshot(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=metadata,
        assignment=assignment_bytes(target, group.topics, metadata),
    )


def _present(member: ConsumerMember) -> Assignment:
    return {
        topic: frozenset({**member.assigned.get(topic, {}), **member.revoking.get(topic, {})})
        for topic in {**member.assigned, **member.revoking}
    }


def assignment_bytes(assignment: Assignment, topics: GroupTopics, metadata: bytes) -> bytes:
    """Return an assignment as a classic member reads it, in the version of its subscription."""
    named = [
        TopicPartitions(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    version = min(max(version_of(metadata), 0), ConsumerProtocolAssignment.MAX_VERSION)
    return ConsumerProtocolAssignment(assigned_partitions=named).to_bytes(version)
