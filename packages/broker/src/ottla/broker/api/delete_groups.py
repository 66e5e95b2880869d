"""DeleteGroups: delete groups without members, and their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.groups.kinds import GroupKind
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DELETE_GROUPS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.share.parts import ShareParts


class Needs(Protocol):
    """The parts of the broker that DeleteGroups uses."""

    groups: GroupCoordinator
    metadata: MetadataCache
    replicas: Replicas

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...

    @property
    def share(self) -> Callable[[], ShareParts]:
        """Returns the parts for share groups."""
        ...


async def handle(
    services: Needs, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    """Delete groups; one with members gets NON_EMPTY_GROUP, an unknown one GROUP_ID_NOT_FOUND."""
    refused = await refused_names(context, DELETE_GROUPS, request.groups_names)
    results = [
        DeletableGroupResult(group_id=name, error_code=await _delete(services, name))
        async for name in context.paced(dict.fromkeys(request.groups_names))
        if name not in refused
    ]
    error = ErrorCode.GROUP_AUTHORIZATION_FAILED
    failed = [DeletableGroupResult(group_id=name, error_code=error) for name in sorted(refused)]
    return DeleteGroupsResponse(results=[*results, *failed])


async def _delete(services: Needs, group_id: str) -> int:
    """Delete a group; return the error. The state of a share group's partitions goes before the group."""
    try:
        group = services.groups.find(group_id, GroupKind.SHARE).group
    except KafkaError:
        return int((await services.groups.delete_groups([group_id]))[group_id])
    if not group.is_empty:
        return int(ErrorCode.NON_EMPTY_GROUP)
    from ottla.broker.api.share_group_offsets import delete_all_state

    try:
        await delete_all_state(services, group)
    except KafkaError as error:
        return int(error.code)
    return int((await services.groups.delete_groups([group_id]))[group_id])
