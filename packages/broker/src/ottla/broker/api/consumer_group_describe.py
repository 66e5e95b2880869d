"""ConsumerGroupDescribe: the members of groups, what they have, and what they shall have (KIP-848)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.api.consumer_group_heartbeat import Levels
from ottla.broker.api.described_groups import check_topics, describe_each
from ottla.broker.cluster.features import GROUP
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.members import ConsumerMember, without_epochs
from ottla.broker.groups.kinds import GroupKind, HostableGroup
from ottla.broker.requests.context import RequestContext
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    DescribedTopicPartitions,
    Member,
    MemberAssignment,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

CLASSIC: Final = 0
CONSUMER: Final = 1
HIDDEN: Final = "The group has described topic(s) that the client is not authorized to describe."


class Needs(Protocol):
    """The parts of the broker that ConsumerGroupDescribe uses."""

    groups: GroupCoordinator

    @property
    def features(self) -> Levels:
        """The levels of this moment."""
        ...


async def handle(
    services: Needs, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """Describe each group; one with a topic that the client may not describe is refused as a whole."""
    level = services.features.level(GROUP)
    groups = await describe_each(
        request.group_ids,
        context,
        off=None if level else "The consumer group protocol is off: group.version is 0.",
        find=lambda group_id: services.groups.find(group_id, GroupKind.CONSUMER).group,
        describe=lambda group: _described(group, context),
        failed=lambda group_id: DescribedGroup(group_id=group_id),
        with_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


async def _described(group: HostableGroup, context: RequestContext) -> DescribedGroup:
    assert isinstance(group, ConsumerGroup)
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(group, member) async for member in context.paced(list(group.members.values()))],
    )
    await check_topics(context, _topics(described.members), HIDDEN)
    return described


def _topics(members: Iterable[Member]) -> Iterator[str]:
    for member in members:
        for assignment in (member.assignment, member.target_assignment):
            for topic in assignment.topic_partitions:
                yield topic.topic_name


def _member(group: ConsumerGroup, member: ConsumerMember) -> Member:
    has = {topic: set(partitions) for topic, partitions in without_epochs(member.assigned).items()}
    for topic, partitions in member.revoking.items():
        has.setdefault(topic, set()).update(partitions)
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.expression,
        assignment=_assignment(group, has),
        target_assignment=_assignment(group, group.target_of(member.member_id, member.instance_id)),
        member_type=CONSUMER if member.classic is None else CLASSIC,
    )


def _assignment(group: ConsumerGroup, partitions: Mapping[UUID, Collection[int]]) -> MemberAssignment:
    return MemberAssignment(
        topic_partitions=[
            DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := group.topics.name_of(topic_id)) is not None
        ]
    )
