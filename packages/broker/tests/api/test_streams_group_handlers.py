"""The APIs of streams groups from decoded request to encoded answer: checks, rights, and internal topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ottla.broker.api import (
    join_group,
    list_groups,
    offset_commit,
    streams_group_describe,
    streams_group_heartbeat,
    streams_group_topology_description_update,
)
from ottla.broker.api.group_testing import BROKER, GroupServices, TopicsStub, ask, group_services, tell
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.groups.streams.testing import counting, stateless
from ottla.broker.groups.streams.topic_configuration import StatusCode
from ottla.broker.requests.context import RequestContext
from ottla.broker.security.authorizer import Authorizer, Operation, Resource, ResourceType
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import ErrorCode, PolicyViolation, TopicAlreadyExists
from ottla.protocol.messages.groups import ListGroupsRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, TaskIds
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    Subtopology,
    Topology,
)


class CreatingTopics(TopicsStub):
    """Creates topics by telling the coordinator of them, as a controller would."""

    def __init__(self, metadata: MetadataCache) -> None:
        super().__init__(metadata)
        self.partitions = {"words": 2}
        self.made: list[NewTopic] = []
        tell(metadata, self.partitions)

    async def create(self, topic: NewTopic, **_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.made.append(topic)
        self.partitions[topic.name] = topic.partitions


@dataclass
class Levels:
    level_of_streams: int = 1

    def level(self, name: str) -> int:
        return self.level_of_streams if name == "streams.version" else 0


@dataclass
class Services:
    """The parts, with the feature on unless it is turned off."""

    parts: GroupServices
    features: Levels = field(default_factory=Levels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parts, name)

    def publish(self) -> None:
        """Publish the topics that were created."""
        topics = cast(CreatingTopics, self.parts.topics)
        tell(self.parts.metadata, topics.partitions)
        self.parts.groups.topics_published(topics.partitions, [])


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    async with group_services(CreatingTopics(MetadataCache(BROKER))) as parts:
        yield Services(parts)


def join(member_id: str = "m", **fields: Any) -> StreamsGroupHeartbeatRequest:
    defaults: dict[str, Any] = {
        "group_id": "app", "member_id": member_id, "member_epoch": 0, "rebalance_timeout_ms": 60_000,
        "topology": counting(), "process_id": "p",
        "active_tasks": [], "standby_tasks": [], "warmup_tasks": [],
    }  # fmt: skip
    return StreamsGroupHeartbeatRequest(**defaults | fields)


async def beat(
    services: Services, request: StreamsGroupHeartbeatRequest, version: int = 1
) -> StreamsGroupHeartbeatResponse:
    return await ask(services, streams_group_heartbeat.handle, request, version)


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    return [status.status_code for status in response.status or ()]


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_joins_and_its_internal_topics_are_created(services: Services, version: int) -> None:
    first = await beat(services, join(), version)

    assert first.error_code == ErrorCode.NONE
    assert StatusCode.MISSING_INTERNAL_TOPICS in statuses(first)
    made = {topic.name: topic.partitions for topic in services.topics.made}
    assert made == {"app-by-word-repartition": 2, "app-counts-changelog": 2}
    services.publish()
    again = await beat(services, join(member_epoch=first.member_epoch, topology=None), version)
    assert StatusCode.MISSING_INTERNAL_TOPICS not in statuses(again)


async def test_a_topic_that_cannot_be_created_is_said_why(services: Services) -> None:
    services.topics.refusal = PolicyViolation("the disk is small")

    response = await beat(services, join())

    (detail,) = [status.status_detail for status in response.status or () if status.status_code == 3]
    assert "Creation failed: " in detail
    assert "(the disk is small)" in detail
    services.topics.refusal = TopicAlreadyExists()
    again = await beat(services, join())
    assert not any("failed" in status.status_detail for status in again.status or ())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": [TaskIds()]}, "ActiveTasks must be empty when (re-)joining."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        ({"active_tasks": None}, "If one task-type is non-null, all must be non-null."),
        (
            {"topology": Topology(subtopologies=[Subtopology(source_topic_regex=["a.*"])])},
            "Regular expressions for source topics are not supported yet.",
        ),
    ],
)
async def test_a_request_that_contradicts_itself_is_invalid(
    services: Services, fields: dict[str, Any], problem: str
) -> None:
    response = await beat(services, join(**fields))

    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, problem)


@pytest.mark.parametrize("name", ["../etc/passwd", "a/b", "", "..", "x" * 250, "__consumer_offsets"])
async def test_a_topology_with_a_name_that_no_topic_may_have_is_invalid(
    services: Services, name: str
) -> None:
    response = await beat(services, join(topology=stateless(name)))

    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert not services.topics.made


async def test_a_topology_of_ten_thousand_parts_is_too_large(services: Services) -> None:
    parts = [Subtopology(subtopology_id=str(number)) for number in range(10_000)]

    response = await beat(services, join(topology=Topology(subtopologies=parts)))

    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert "group.streams.max.topology.topics" in (response.error_message or "")


async def test_without_the_feature_nothing_is_served(services: Services) -> None:
    services.features.level_of_streams = 0

    joined = await beat(services, join())
    described = await ask(
        services, streams_group_describe.handle, StreamsGroupDescribeRequest(group_ids=["app"]), 1
    )

    assert joined.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [group.error_code for group in described.groups] == [ErrorCode.UNSUPPORTED_VERSION]


async def test_a_described_group_has_its_topology_and_members(services: Services) -> None:
    await beat(services, join())
    services.publish()
    request = StreamsGroupDescribeRequest(group_ids=["app", "other"], include_topology_description=True)

    found, missing = (await ask(services, streams_group_describe.handle, request, 1)).groups

    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert found.topology is not None
    assert [part.subtopology_id for part in found.topology.subtopologies or ()] == ["0", "1"]
    assert [(member.member_id, member.process_id) for member in found.members] == [("m", "p")]
    assert (found.assignor_name, found.topology_description_status) == ("sticky", 1)
    listed = await ask(services, list_groups.handle, ListGroupsRequest(types_filter=["streams"]), 5)
    assert [(group.group_id, group.protocol_type, group.group_type) for group in listed.groups] == [
        ("app", "streams", "streams")
    ]


async def test_a_description_of_the_topology_is_not_asked_for_and_not_taken(services: Services) -> None:
    response = await beat(services, join())
    request = StreamsGroupTopologyDescriptionUpdateRequest(group_id="app", member_id="m")
    answer = await ask(services, streams_group_topology_description_update.handle, request, 0)

    assert not response.topology_description_required
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "plugin" in (answer.error_message or "")


async def test_members_of_the_classic_protocol_cannot_join(services: Services) -> None:
    await beat(services, join())
    request = JoinGroupRequest(
        group_id="app", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="consumer"
    )

    answer = await ask(services, join_group.handle, request, 5)

    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_commit_with_a_wrong_epoch_is_stale(services: Services) -> None:
    await beat(services, join(topology=stateless()))

    async def commit(epoch: int, member_id: str = "m") -> int:
        request = OffsetCommitRequest(
            group_id="app",
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name="words",
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
                )
            ],
        )
        answer = await ask(services, offset_commit.handle, request, 9)
        code: int = answer.topics[0].partitions[0].error_code
        return code

    assert await commit(1) == ErrorCode.NONE
    assert await commit(7) == ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(1, "other") == ErrorCode.UNKNOWN_MEMBER_ID


# ---- rights


class Only:
    """Allows these operations on these types, and nothing else."""

    def __init__(self, *allowed: tuple[Operation, ResourceType]) -> None:
        self._allowed: Collection[tuple[Operation, ResourceType]] = allowed

    def allows(self, principal: object, host: str, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.type) in self._allowed

    def allows_any(self, *_: object) -> bool:
        return False

    def audit(self, decision: object) -> None:
        """Log nothing."""


READ = (Operation.READ, ResourceType.GROUP)
DESCRIBE_TOPIC = (Operation.DESCRIBE, ResourceType.TOPIC)
CREATE_TOPIC = (Operation.CREATE, ResourceType.TOPIC)
CREATE_ANY = (Operation.CREATE, ResourceType.CLUSTER)


@pytest.mark.parametrize(
    ("allowed", "error", "creates"),
    [
        ((), ErrorCode.GROUP_AUTHORIZATION_FAILED, False),
        ((READ,), ErrorCode.TOPIC_AUTHORIZATION_FAILED, False),
        ((READ, DESCRIBE_TOPIC), ErrorCode.NONE, False),
        ((READ, DESCRIBE_TOPIC, CREATE_TOPIC), ErrorCode.NONE, True),
        ((READ, DESCRIBE_TOPIC, CREATE_ANY), ErrorCode.NONE, True),
    ],
    ids=["none", "group", "topics", "create-topics", "create"],
)
async def test_internal_topics_are_created_with_the_rights_of_the_member(
    services: Services, allowed: tuple[Any, ...], error: ErrorCode, creates: bool
) -> None:
    context = RequestContext(
        RequestHeader(StreamsGroupHeartbeatRequest.API_KEY, 1, 1, "client"),
        FakeSession(),
        0,
        authorizer=cast(Authorizer, Only(*allowed)),
    )

    async with asyncio.timeout(10):
        response = await streams_group_heartbeat.handle(cast(Any, services), join(), context)

    assert response.error_code == error
    assert bool(services.topics.made) is creates
    refused = any(
        "Unauthorized to CREATE on topics" in status.status_detail for status in response.status or ()
    )
    assert refused is (error is ErrorCode.NONE and not creates)
