"""Checks of requests to a classic group: pure functions that return the error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.groups.classic.events import UNKNOWN_MEMBER_ID, GroupState, Join, Sync
from ottla.broker.groups.classic.members import metadata_bytes
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.groups.classic.group_metadata import GroupMetadata


def validate_member(
    group: GroupMetadata, member_id: str, instance_id: str | None, generation: int | None = None
) -> ErrorCode:
    """Return the error for a request of this member in this generation."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if instance_id is not None:
        current = group.members.static_member_id(instance_id)
        if current is not None and current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    if member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation is not None and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def validate_commit(
    group: GroupMetadata, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
) -> ErrorCode:
    """Return the error for a commit; the caller handles a group in rebalance."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE  # a simple consumer or an administrator
    if generation >= 0 or member_id != UNKNOWN_MEMBER_ID or instance_id is not None:
        return validate_member(group, member_id, instance_id, generation)
    return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID


def validate_sync(group: GroupMetadata, sync: Sync) -> ErrorCode:
    """Return the error for a sync that cannot get an assignment, now or later."""
    error = validate_member(group, sync.member_id, sync.instance_id, sync.generation)
    if error is not ErrorCode.NONE:
        return error
    if sync.protocol_type is not None and sync.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if sync.protocol_name is not None and sync.protocol_name != group.protocol_name:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def has_room_for(group: GroupMetadata, join: Join) -> bool:
    """Return whether this member, new or known, may join without making the group too large."""
    return _has_a_place(group, join.member_id) and _has_room_for_metadata(group, join)


def _has_room_for_metadata(group: GroupMetadata, join: Join) -> bool:
    member = group.members.get(join.member_id)
    others = group.members.metadata_bytes - (metadata_bytes(member.protocols) if member else 0)
    return others + metadata_bytes(join.protocols) <= group.limits.max_metadata_bytes


def _has_a_place(group: GroupMetadata, member_id: str) -> bool:
    most = group.limits.max_size
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # A lowered limit may leave too many members: only those that have joined again count.
        return (member is not None and member.join is not None) or group.members.awaiting_join < most
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        return True
    return member is not None or len(group.members) < most


def supports(group: GroupMetadata, join: Join) -> bool:
    """Return whether the group would still have a protocol that every member supports."""
    if group.state is GroupState.EMPTY:
        return bool(join.protocol_type) and bool(join.protocols)
    return group.protocol_type == join.protocol_type and group.members.supports_one_of(join.protocols)
