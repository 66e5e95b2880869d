"""DescribeGroups: members, subscriptions and assignments of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.groups.classic.descriptions import GroupDescription
from ottla.broker.requests.authorization import NO_OPERATIONS_ASKED, authorized_operations, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_GROUPS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

OPERATIONS_FROM: Final = 3
NOT_FOUND_FROM: Final = 6
"""Earlier versions show a group that is not there, or not classic, as Dead."""


class Needs(Protocol):
    """The parts of the broker that DescribeGroups uses."""

    groups: GroupCoordinator


async def handle(
    services: Needs, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Describe each group; the state of an unknown group is Dead."""
    asked = context.api_version >= OPERATIONS_FROM and request.include_authorized_operations
    refused = await refused_names(context, DESCRIBE_GROUPS, request.groups)
    described = [
        await _described(services.groups.describe_group(group_id), context, with_operations=asked)
        async for group_id in context.paced(dict.fromkeys(request.groups))
        if group_id not in refused
    ]
    return DescribeGroupsResponse(groups=[*map(_refused, sorted(refused)), *described])


def _refused(group_id: str) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)


async def _described(
    group: GroupDescription, context: RequestContext, *, with_operations: bool
) -> DescribedGroup:
    if group.error is not ErrorCode.NONE:
        return DescribedGroup(
            group_id=group.group_id,
            error_code=group.error,
        )
    has_error = group.problem is not None and context.api_version >= NOT_FOUND_FROM
    return DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if has_error else ErrorCode.NONE,
        error_message=group.problem if has_error else None,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            async for member in context.paced(group.members)
        ],
        authorized_operations=authorized_operations(context, Resource(ResourceType.GROUP, group.group_id))
        if with_operations and not has_error
        else NO_OPERATIONS_ASKED,
    )
