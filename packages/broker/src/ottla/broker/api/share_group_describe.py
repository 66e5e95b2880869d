"""ShareGroupDescribe: the members of share groups and their partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.described_groups import check_topics, describe_each
from ottla.broker.api.share_group_heartbeat import OFF
from ottla.broker.cluster.features import SHARE
from ottla.broker.groups.kinds import GroupKind, HostableGroup
from ottla.broker.groups.share.assignor import SIMPLE
from ottla.broker.groups.share.group import ShareGroup
from ottla.broker.groups.share.members import ShareMember
from ottla.protocol.messages.consumer_groups import DescribedTopicPartitions, MemberAssignment
from ottla.protocol.messages.share_groups import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.requests.context import RequestContext

HIDDEN = "The group has described topic(s) that the client is not authorized to describe."


class Needs(Protocol):
    """The parts of the broker that ShareGroupDescribe uses."""

    groups: GroupCoordinator

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...


async def handle(
    services: Needs, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    """Describe each group; one with a topic that the client may not describe is refused as a whole."""
    level = services.features.level(SHARE)
    groups = await describe_each(
        request.group_ids,
        context,
        off=None if level else OFF,
        find=lambda group_id: services.groups.find(group_id, GroupKind.SHARE).group,
        describe=lambda group: _described(group, context),
        failed=lambda group_id: DescribedGroup(group_id=group_id),
        with_operations=request.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(groups=groups)


async def _described(group: HostableGroup, context: RequestContext) -> DescribedGroup:
    assert isinstance(group, ShareGroup)
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE,
        members=[_member(group, member) async for member in context.paced(list(group.members.values()))],
    )
    names = (topic.topic_name for member in described.members for topic in member.assignment.topic_partitions)
    await check_topics(context, names, HIDDEN)
    return described


def _member(group: ShareGroup, member: ShareMember) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=MemberAssignment(
            topic_partitions=[
                DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(numbers))
                for topic_id, numbers in member.assigned.items()
                if (name := group.topics.name_of(topic_id)) is not None
            ]
        ),
    )
