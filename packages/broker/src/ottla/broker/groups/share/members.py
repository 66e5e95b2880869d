"""The members of a share group, and the records of `__consumer_offsets` that keep them (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from ottla.broker.groups.kinds import KindRecord, tombstones_of_member
from ottla.broker.groups.share.assignor import Assignment
from ottla.protocol import stored_groups as stored
from ottla.zookeeper.frozen_classes import frozen

NOTHING: Final[Assignment] = {}


@frozen(kw_only=True)
class ShareMember:
    """A member, with the partitions that it reads."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Assignment = NOTHING


# ---- records


def member_record(group_id: str, member: ShareMember) -> KindRecord:
    """Return the record of a member's subscription."""
    value = stored.ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
    )
    key = stored.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return KindRecord(group_id, key, value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KindRecord:
    """Return the record of a group epoch."""
    value = stored.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return KindRecord(group_id, stored.ShareGroupMetadataKey(group_id=group_id), value)


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> KindRecord:
    """Return the record of the epoch that the target assignments are for."""
    value = stored.ShareGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=wall_ms
    )
    return KindRecord(group_id, stored.ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Assignment) -> KindRecord:
    """Return the record of a member's target assignment."""
    key = stored.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    value = stored.ShareGroupTargetAssignmentMemberValue(topic_partitions=_stored(target))
    return KindRecord(group_id, key, value)


def assignment_record(group_id: str, member: ShareMember) -> KindRecord:
    """Return the record of a member's epoch and partitions."""
    key = stored.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    value = stored.ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        assigned_partitions=_stored(member.assigned),
    )
    return KindRecord(group_id, key, value)


def member_tombstones(group_id: str, member_id: str) -> list[KindRecord]:
    """Return the records that delete a member."""
    return tombstones_of_member(
        group_id,
        member_id,
        stored.ShareGroupCurrentMemberAssignmentKey,
        stored.ShareGroupTargetAssignmentMemberKey,
        stored.ShareGroupMemberMetadataKey,
    )


def _stored(assignment: Assignment) -> list[stored.TopicPartition]:
    return [
        stored.TopicPartition(topic_id=topic, partitions=sorted(numbers))
        for topic, numbers in assignment.items()
    ]


def partitions_of(topics: Iterable[Any]) -> dict[UUID, frozenset[int]]:
    """Return the partitions of topics as a record holds them."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}
