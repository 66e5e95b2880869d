"""ShareGroupDescribe: the members of share groups and their partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.share_group_heartbeat import OFF
from ottla.broker.cluster.features import SHARE
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.assignor import SIMPLE
from ottla.broker.groups.share.group import ShareGroup, ShareMember
from ottla.broker.requests.authorization import authorized_operations, refused_names
from ottla.broker.requests.permissions import DESCRIBE_GROUPS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import ErrorCode, GroupAuthorizationFailed, KafkaError, UnsupportedVersion
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
    refused = await refused_names(context, DESCRIBE_GROUPS, request.group_ids)
    groups: list[DescribedGroup] = []
    for group_id in dict.fromkeys(request.group_ids):
        try:
            if services.features.level(SHARE) == 0:
                raise UnsupportedVersion(OFF)
            if group_id in refused:
                raise GroupAuthorizationFailed
            group = services.groups.find(group_id, GroupKind.SHARE).group
        except KafkaError as error:
            described = DescribedGroup(
                group_id=group_id, error_code=int(error.code), error_message=str(error) or None
            )
        else:
            assert isinstance(group, ShareGroup)
            described = await _described(group, context)
            if request.include_authorized_operations and not described.error_code:
                resource = Resource(ResourceType.GROUP, group_id)
                described.authorized_operations = authorized_operations(context, resource)
        groups.append(described)
    return ShareGroupDescribeResponse(groups=groups)


async def _described(group: ShareGroup, context: RequestContext) -> DescribedGroup:
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE,
        members=[_member(group, member) async for member in context.paced(list(group.members.values()))],
    )
    names = dict.fromkeys(
        topic.topic_name for member in described.members for topic in member.assignment.topic_partitions
    )
    if await refused_names(context, DESCRIBE_TOPICS, names):
        error = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return DescribedGroup(group_id=group.group_id, error_code=error, error_message=HIDDEN)
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
