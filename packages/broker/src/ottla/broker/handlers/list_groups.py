"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.groups.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that ListGroups uses."""

    groups: GroupCoordinator


async def handle(services: Needs, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List groups; from version 4 on, only those in the requested states (KIP-518)."""
    error, groups = services.groups.list_groups(frozenset(request.states_filter))
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(group_id=one.group_id, protocol_type=one.protocol_type, group_state=one.state.value)
            async for one in context.paced(groups)
        ],
    )
