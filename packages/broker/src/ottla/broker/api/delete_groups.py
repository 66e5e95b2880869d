"""DeleteGroups: delete groups without members, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DELETE_GROUPS
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that DeleteGroups uses."""

    groups: GroupCoordinator


async def handle(
    services: Needs, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete groups; one with members gets NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND."""
    refused = await refused_names(context, DELETE_GROUPS, request.groups_names)
    results = []
    async for name in context.paced(dict.fromkeys(request.groups_names)):
        if name not in refused:
            outcome = await services.groups.delete_groups([name])
            results.append(DeletableGroupResult(group_id=name, error_code=outcome[name]))
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    failed = [DeletableGroupResult(group_id=name, error_code=error) for name in sorted(refused)]
    return DeleteGroupsResponse(results=[*results, *failed])
