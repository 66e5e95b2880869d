"""ListGroups: the groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE, DESCRIBE_GROUPS
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.protocol.messages.groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator


class Needs(Protocol):
    """The parts of the broker that ListGroups uses."""

    groups: GroupCoordinator


async def handle(services: Needs, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    """List groups: only those in the requested states (KIP-518) and of the requested types (KIP-848).

    A client that may describe the cluster sees all, another one those that it may describe.
    """
    error, groups = services.groups.list_groups(frozenset(request.states_filter))
    types = {type_name.lower() for type_name in request.types_filter}
    sees_all = context.allows(DESCRIBE, CLUSTER, is_asked_for=False)
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.kind,
            )
            async for group in context.paced(groups)
            if (not types or group.kind in types) and (sees_all or _is_shown(group.group_id, context))
        ],
    )


def _is_shown(group_id: str, context: RequestContext) -> bool:
    return context.allows(DESCRIBE_GROUPS, Resource(ResourceType.GROUP, group_id), is_asked_for=False)
