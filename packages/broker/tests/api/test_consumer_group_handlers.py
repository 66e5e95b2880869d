"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and what other APIs answer about such groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    list_groups,
    offset_commit,
    offset_fetch,
)
from ottla.broker.api.group_testing import GroupServices, TopicsStub, ask, context_of, group_services, tell
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.authorizer import Decision, Operation, Resource, ResourceType
from ottla.broker.security.principal import Principal
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.schema import Message

BOTH = pytest.mark.parametrize("version", [0, 1])
TOPIC_ID = UUID(int=1)


@pytest.fixture
async def services() -> AsyncIterator[GroupServices]:
    topics = TopicsStub(MetadataCache(7))
    tell(topics.metadata, {"topic": 2, "secret": 1, "__consumer_offsets": 4})
    async with group_services(topics) as services:
        yield services


async def beat(services: GroupServices, version: int = 1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
    joins: dict[str, Any] = {
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ["topic"],
        "topic_partitions": [],
    }
    given: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    if fields.get("member_epoch", 0) == 0:
        given |= joins
    request = ConsumerGroupHeartbeatRequest(**given | fields)
    return await ask(services, consumer_group_heartbeat.handle, request, version)


@BOTH
async def test_a_member_joins_stays_and_leaves(services: GroupServices, version: int) -> None:
    joined = await beat(services, version)

    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 2)
    assert joined.assignment is not None
    assert [(topic.topic_id, topic.partitions) for topic in joined.assignment.topic_partitions] == [
        (TOPIC_ID, [0, 1])
    ]
    has = [TopicPartitions(topic_id=TOPIC_ID, partitions=[0, 1])]
    stayed = await beat(services, version, member_epoch=2, topic_partitions=has)
    assert (stayed.member_epoch, stayed.assignment, stayed.heartbeat_interval_ms) == (2, None, 500)
    left = await beat(services, version, member_epoch=-1)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await beat(services, version, member_epoch=2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_first_version_gives_out_member_ids(services: GroupServices) -> None:
    joined = await beat(services, 0, member_id="")

    assert joined.error_code == 0
    assert len(joined.member_id or "") == 22


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group_id": " "}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"topic_partitions": [TopicPartitions(topic_id=TOPIC_ID, partitions=[0])]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": [str(number) for number in range(10_001)]},
            "A member reads at most 10000 topics by name, not 10001.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
async def test_a_request_that_cannot_be_is_refused(
    services: GroupServices, fields: dict[str, Any], message: str
) -> None:
    answer = await beat(services, **fields)

    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert services.groups.list_groups()[1] == []


async def test_unknown_assignors_and_expressions_are_refused(services: GroupServices) -> None:
    assignor = await beat(services, server_assignor="sticky")
    assert assignor.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert assignor.error_message == (
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range."
    )
    expression = await beat(services, subscribed_topic_regex="(")
    assert expression.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert (await beat(services, member_epoch=3)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_nothing_is_served_while_the_feature_is_off(services: GroupServices) -> None:
    services.features.off.add("group.version")

    assert (await beat(services)).error_code == ErrorCode.UNSUPPORTED_VERSION
    request = ConsumerGroupDescribeRequest(group_ids=["g"])
    described = await ask(services, consumer_group_describe.handle, request, 1)
    assert [group.error_code for group in described.groups] == [ErrorCode.UNSUPPORTED_VERSION]


@BOTH
async def test_groups_are_described_with_their_members(services: GroupServices, version: int) -> None:
    await beat(services, instance_id="i", rack_id="r")
    request = ConsumerGroupDescribeRequest(group_ids=["g", "other", "g"])

    group, other = (await ask(services, consumer_group_describe.handle, request, version)).groups

    assert (other.error_code, other.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group other not found.",
    )
    assert (group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name) == (
        "Stable",
        2,
        2,
        "uniform",
    )
    (member,) = group.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 2)
    assert (member.client_id, member.subscribed_topic_names) == ("client", ["topic"])
    assert member.member_type == (1 if version else -1)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_name, topic.topic_id, topic.partitions) == ("topic", TOPIC_ID, [0, 1])


async def test_lists_and_classic_descriptions_know_the_kind(services: GroupServices) -> None:
    await beat(services)

    listed = await ask(services, list_groups.handle, ListGroupsRequest(types_filter=["Consumer"]), 5)
    assert [(group.group_id, group.group_type, group.group_state) for group in listed.groups] == [
        ("g", "consumer", "Stable")
    ]
    request = ListGroupsRequest(types_filter=["classic"])
    assert (await ask(services, list_groups.handle, request, 5)).groups == []
    for version, error in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        asked = DescribeGroupsRequest(groups=["g"])
        (described,) = (await ask(services, describe_groups.handle, asked, version)).groups
        assert (described.group_state, described.error_code) == ("Dead", error)


# ---- offsets


async def commit(services: GroupServices, epoch: int, version: int = 9) -> int:
    request = OffsetCommitRequest(
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=epoch,
        topics=[
            OffsetCommitRequestTopic(
                name="topic",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)],
            )
        ],
    )
    answer = await ask(services, offset_commit.handle, request, version)
    return answer.topics[0].partitions[0].error_code


async def test_offsets_are_committed_and_fetched_in_the_members_epoch(services: GroupServices) -> None:
    await beat(services)

    assert await commit(services, 2) == ErrorCode.NONE
    assert await commit(services, 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(services, 2, version=8) == ErrorCode.UNSUPPORTED_VERSION
    for epoch, error in ((2, ErrorCode.NONE), (3, ErrorCode.STALE_MEMBER_EPOCH)):
        asked = OffsetFetchRequestGroup(
            group_id="g",
            member_id="m",
            member_epoch=epoch,
            topics=[OffsetFetchRequestTopics(name="topic", partition_indexes=[0])],
        )
        answer = await ask(services, offset_fetch.handle, OffsetFetchRequest(groups=[asked]), 9)
        assert answer.groups[0].error_code == error


# ---- permissions


class Refusing:
    """Refuses some resources, whatever the operation."""

    def __init__(self, *refused: Resource) -> None:
        self.refused = refused

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        return resource not in self.refused

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        return True

    def audit(self, decision: Decision) -> None:
        """Keep no log."""


def refused_context(request: type[Message], *refused: Resource) -> RequestContext:
    return replace(context_of(request, 1), authorizer=Refusing(*refused))


GROUP, TOPIC, SECRET = (
    Resource(ResourceType.GROUP, "g"),
    Resource(ResourceType.TOPIC, "topic"),
    Resource(ResourceType.TOPIC, "secret"),
)


def a_join(**fields: Any) -> ConsumerGroupHeartbeatRequest:
    given: dict[str, Any] = {"subscribed_topic_names": ["topic"], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", rebalance_timeout_ms=1, **given | fields
    )


@pytest.mark.parametrize(
    ("refused", "error"),
    [(GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED), (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED)],
)
async def test_a_heartbeat_needs_the_group_and_the_topics_it_names(
    services: GroupServices, refused: Resource, error: ErrorCode
) -> None:
    context = refused_context(ConsumerGroupHeartbeatRequest, refused)

    answer = await consumer_group_heartbeat.handle(services, a_join(), context)

    assert answer.error_code == error
    assert services.groups.list_groups()[1] == []


async def test_an_expression_sees_only_topics_that_may_be_described(services: GroupServices) -> None:
    context = refused_context(ConsumerGroupHeartbeatRequest, SECRET)
    request = a_join(subscribed_topic_names=None, subscribed_topic_regex="topic|secret")
    await consumer_group_heartbeat.handle(services, request, context)

    group = services.groups.find("g", GroupKind.CONSUMER).group
    for _ in range(10):  # turns of the loop
        await asyncio.sleep(0)

    assert group.is_subscribed_to("topic")
    assert not group.is_subscribed_to("secret")


async def test_a_group_with_a_topic_that_may_not_be_described_is_hidden(services: GroupServices) -> None:
    await beat(services)
    request = ConsumerGroupDescribeRequest(group_ids=["g"])
    for refused, error in (
        (GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ):
        context = refused_context(ConsumerGroupDescribeRequest, refused)
        (group,) = (await consumer_group_describe.handle(services, request, context)).groups
        assert (group.error_code, group.members) == (error, [])
