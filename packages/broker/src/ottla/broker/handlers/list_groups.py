"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from ottla.broker.handlers.services import RequestContext, Services
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


async def handle(
    services: Services, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    """List groups, from version 4 on those in certain states if any are named (KIP-518)."""
    error, groups = services.groups.list_groups(frozenset(request.states_filter))
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(group_id=one.group_id, protocol_type=one.protocol_type, group_state=one.state.value)
            for one in groups
        ],
    )
