"""Descriptions of groups, for ListGroups and DescribeGroups."""

from __future__ import annotations

from enum import Enum

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.kinds import GroupKind
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import frozen


@frozen
class MemberDescription:
    """One member; metadata and assignment are empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@frozen(kw_only=True)
class GroupDescription:
    """One group, or the error of describing it."""

    group_id: str
    error: ErrorCode = ErrorCode.NONE
    state: GroupState = GroupState.EMPTY
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()
    problem: str | None = None
    """Why there is nothing to describe: no such group, or one of another kind."""


@frozen
class ListedGroup:
    """One group of ListGroups."""

    group_id: str
    protocol_type: str
    state: Enum
    kind: GroupKind


def describe(group: Group) -> GroupDescription:
    """Describe a group as it is now."""
    stable = group.state is GroupState.STABLE
    protocol = group.protocol_name if stable else None
    return GroupDescription(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_name=protocol or "",
        members=tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in group.members
        ),
    )
