"""LeaveGroup: members leave, or an administrator removes them by instance id."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.classic.events import Leave, LeaveResult, MemberIdentity
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

BATCHED_FROM = 3


class Needs(Protocol):
    """The parts of the broker that LeaveGroup uses."""

    groups: GroupCoordinator


async def handle(services: Needs, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    """Respond with an error code for each member; versions before 3 have one member and one code."""
    batched = context.api_version >= BATCHED_FROM
    if batched:
        members = tuple(
            MemberIdentity(member.member_id, member.group_instance_id) for member in request.members
        )
        for member in request.members:
            if member.reason:
                log.info(
                    "member leaves",
                    extra={"group": request.group_id, "member": member.member_id, "reason": member.reason},
                )
    else:
        members = (MemberIdentity(request.member_id),)
    result = await services.groups.leave(request.group_id, Leave(token=None, members=members))
    return _batched_response(result) if batched else LeaveGroupResponse(error_code=_only_error(result))


def _batched_response(result: LeaveResult) -> LeaveGroupResponse:
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.instance_id, error_code=error)
            for member, error in result.members
        ],
    )


def _only_error(result: LeaveResult) -> ErrorCode:
    return next((error for _, error in result.members), result.error)
