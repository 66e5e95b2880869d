"""Describe, list and delete consumer groups."""

from __future__ import annotations

from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    blob,
    boolean,
    int16,
    int32,
    message,
    nullable_string,
    string,
)


@message(api_key=15, versions=(0, 6), flexible_from=5)
class DescribeGroupsRequest(Message):
    """Asks about groups; version 3 asks for permitted operations (KIP-430), 6 permits GROUP_ID_NOT_FOUND."""

    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=4, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = blob()
    member_assignment: bytes = blob()


class DescribedGroup(Struct):
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=6, ignorable=True)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(-2147483648, since=3)


@message(api_key=15, versions=(0, 6), flexible_from=5)
class DescribeGroupsResponse(Message):
    """Describes state and members of each group.

    Version 4 adds static members (KIP-345), 6 a message with the error.
    """

    throttle_time_ms: int = int32(since=1, ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


@message(api_key=16, versions=(0, 5), flexible_from=3)
class ListGroupsRequest(Message):
    """Asks for the groups a broker coordinates; version 4 filters by state (KIP-518), 5 by type (KIP-848)."""

    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, ignorable=True)
    group_type: str = string(since=5, ignorable=True)


@message(api_key=16, versions=(0, 5), flexible_from=3)
class ListGroupsResponse(Message):
    """Lists groups."""

    throttle_time_ms: int = int32(since=1, ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


@message(api_key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsRequest(Message):
    """Deletes groups that have no members (KIP-229)."""

    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()
    error_message: str | None = nullable_string(None, since=3, ignorable=True)


@message(api_key=42, versions=(0, 3), flexible_from=2)
class DeleteGroupsResponse(Message):
    """Says whether each group was deleted; version 3 adds a message with the error (KIP-1331)."""

    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
