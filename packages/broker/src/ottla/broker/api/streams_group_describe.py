"""StreamsGroupDescribe: the topology of groups, and the tasks of their members (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.streams_group_heartbeat import OFF, Levels
from ottla.broker.cluster.features import STREAMS
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.streams.descriptions import describe, describe_member, topics_of
from ottla.broker.groups.streams.group import StreamsGroup
from ottla.broker.requests.authorization import authorized_operations, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_GROUPS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode, GroupAuthorizationFailed, KafkaError, UnsupportedVersion
from ottla.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

NOT_STORED: Final = 1
"""The status of the description of a topology that the coordinator does not have."""
HIDDEN: Final = "The described group uses topics that the client is not authorized to describe."


class Needs(Protocol):
    """The parts of the broker that StreamsGroupDescribe uses."""

    groups: GroupCoordinator

    @property
    def features(self) -> Levels:
        """The levels of this moment."""
        ...


async def handle(
    services: Needs, request: StreamsGroupDescribeRequest, context: RequestContext
) -> StreamsGroupDescribeResponse:
    """Describe each group; one with a topic that the client may not describe is refused as a whole."""
    is_off = services.features.level(STREAMS) == 0
    refused = await refused_names(context, DESCRIBE_GROUPS, request.group_ids)
    groups: list[DescribedGroup] = []
    for group_id in request.group_ids:
        try:
            if is_off:
                raise UnsupportedVersion(OFF)
            if group_id in refused:
                raise GroupAuthorizationFailed
            group = services.groups.find(group_id, GroupKind.STREAMS).group
        except KafkaError as error:
            groups.append(DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error)))
            continue
        assert isinstance(group, StreamsGroup)
        groups.append(await _described(group, request, context))
    return StreamsGroupDescribeResponse(groups=groups)


async def _described(
    group: StreamsGroup, request: StreamsGroupDescribeRequest, context: RequestContext
) -> DescribedGroup:
    described = describe(group)
    if await refused_names(context, DESCRIBE_TOPICS, topics_of(described)):
        return DescribedGroup(
            group_id=group.group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=HIDDEN,
        )
    described.members = [
        describe_member(group.data, member)
        async for member in context.paced(list(group.data.members.values()))
    ]
    if request.include_topology_description:
        described.topology_description_status = NOT_STORED
    if request.include_authorized_operations:
        resource = Resource(ResourceType.GROUP, group.group_id)
        described.authorized_operations = authorized_operations(context, resource)
    return described
