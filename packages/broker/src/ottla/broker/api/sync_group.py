"""SyncGroup: the group leader submits the assignment, every member gets its own part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.classic.events import Sync
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_GROUPS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

PROTOCOL_REQUIRED_FROM = 5


class Needs(Protocol):
    """The parts of the broker that SyncGroup uses."""

    groups: GroupCoordinator


async def handle(services: Needs, request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse:
    """Respond once the leader's assignment is in the log."""
    if context.api_version >= PROTOCOL_REQUIRED_FROM and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    result = await services.groups.sync(request.group_id, await _sync(request, context))
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


async def _sync(request: SyncGroupRequest, context: RequestContext) -> Sync:
    return Sync(
        token=None,
        member_id=request.member_id,
        generation=request.generation_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={
            assignment.member_id: bytes(assignment.assignment)
            async for assignment in context.paced(request.assignments)
        },
    )
