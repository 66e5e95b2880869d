"""StreamsGroupDescribe: the topology of groups, and the tasks of their members (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.described_groups import check_topics, describe_each
from ottla.broker.api.streams_group_heartbeat import OFF, Levels
from ottla.broker.cluster.features import STREAMS
from ottla.broker.groups.kinds import GroupKind, HostableGroup
from ottla.broker.groups.streams.descriptions import describe, describe_member, topics_of
from ottla.broker.groups.streams.group import StreamsGroup
from ottla.broker.requests.context import RequestContext
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
    level = services.features.level(STREAMS)
    groups = await describe_each(
        request.group_ids,
        context,
        off=None if level else OFF,
        find=lambda group_id: services.groups.find(group_id, GroupKind.STREAMS).group,
        describe=lambda group: _described(group, request, context),
        failed=lambda group_id: DescribedGroup(group_id=group_id),
        with_operations=request.include_authorized_operations,
    )
    return StreamsGroupDescribeResponse(groups=groups)


async def _described(
    group: HostableGroup, request: StreamsGroupDescribeRequest, context: RequestContext
) -> DescribedGroup:
    assert isinstance(group, StreamsGroup)
    described = describe(group)
    await check_topics(context, topics_of(described), HIDDEN)
    described.members = [
        describe_member(group.data, member)
        async for member in context.paced(list(group.data.members.values()))
    ]
    if request.include_topology_description:
        described.topology_description_status = NOT_STORED
    return described
