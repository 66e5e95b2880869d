"""OffsetCommit, OffsetFetch and OffsetDelete in every version they are served in."""

from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import offset_commit, offset_delete, offset_fetch
from ottla.broker.api.group_testing import PARTITIONS, GroupServices, ask, tell
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from ottla.zookeeper import paths

TOPIC_ID = UUID(int=1)
"""The id of the topic that the metadata knows."""
UNKNOWN_ID = UUID(int=99)


def versions(last: int, first: int = 0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(first, last + 1))


def a_commit(offsets: dict[int, int], metadata: str | None = "note", **more: Any) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata
        )
        for index, offset in offsets.items()
    ]
    topics = [OffsetCommitRequestTopic(name="topic", topic_id=TOPIC_ID, partitions=partitions)]
    return OffsetCommitRequest(group_id="g", topics=topics, **more)


def a_fetch(*indexes: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopic(name="topic", partition_indexes=list(indexes))]
    return OffsetFetchRequest(group_id="g", topics=topics)


def commit_errors(answer: OffsetCommitResponse) -> list[int]:
    return [one.error_code for topic in answer.topics for one in topic.partitions]


def fetched(answer: OffsetFetchResponse) -> list[tuple[int, int, str | None, int]]:
    return [
        (one.partition_index, one.committed_offset, one.metadata, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    ]


@versions(10, first=1)
async def test_offsets_are_committed_to_the_log(services: GroupServices, version: int) -> None:
    answer = await ask(services, offset_commit.handle, a_commit({0: 5, 1: 6}), version)

    assert commit_errors(answer) == [0, 0]
    assert not await services.zookeeper.exists(paths.consumer_offset("g", "topic", 0))
    assert fetched(await ask(services, offset_fetch.handle, a_fetch(0, 1), 5)) == [
        (0, 5, "note", 0),
        (1, 6, "note", 0),
    ]


@versions(7, first=1)
async def test_a_partition_without_offset_is_minus_one_and_no_error(
    services: GroupServices, version: int
) -> None:
    answer = await ask(services, offset_fetch.handle, a_fetch(0), version)

    assert fetched(answer) == [(0, -1, "", 0)]
    assert answer.error_code == 0


@versions(7, first=2)
async def test_without_topics_all_offsets_are_fetched(services: GroupServices, version: int) -> None:
    await ask(services, offset_commit.handle, a_commit({1: 6}), 5)

    answer = await ask(services, offset_fetch.handle, OffsetFetchRequest(group_id="g", topics=None), version)

    assert fetched(answer) == [(1, 6, "note", 0)]


@versions(7, first=1)
async def test_the_error_of_a_group_of_another_coordinator_is_at_each_partition_too(
    services: GroupServices, version: int
) -> None:
    services.groups.leadership_changed(
        [], [(TopicPartition(GROUP_METADATA_TOPIC, number), 0) for number in range(PARTITIONS)]
    )

    answer = await ask(services, offset_fetch.handle, a_fetch(0), version)

    assert fetched(answer) == [(0, -1, "", ErrorCode.NOT_COORDINATOR)]
    assert answer.error_code == (ErrorCode.NOT_COORDINATOR if version > 1 else 0)
    commit = await ask(services, offset_commit.handle, a_commit({0: 1}), 5)
    assert commit_errors(commit) == [ErrorCode.NOT_COORDINATOR]


@versions(10, first=8)
async def test_several_groups_are_fetched_at_once(services: GroupServices, version: int) -> None:
    await ask(services, offset_commit.handle, a_commit({0: 5, 1: 6}), 5)
    some = [OffsetFetchRequestTopics(name="topic", topic_id=TOPIC_ID, partition_indexes=[1])]
    asked = [
        OffsetFetchRequestGroup(group_id="g", topics=some),
        OffsetFetchRequestGroup(group_id="g", topics=None),
        OffsetFetchRequestGroup(group_id="unknown", topics=some),
    ]

    answer = await ask(services, offset_fetch.handle, OffsetFetchRequest(groups=asked), version)

    found = [
        [(one.partition_index, one.committed_offset) for topic in group.topics for one in topic.partitions]
        for group in answer.groups
    ]
    assert [(group.group_id, group.error_code) for group in answer.groups] == [
        ("g", 0),
        ("g", 0),
        ("unknown", 0),
    ]
    assert found == [[(1, 6)], [(0, 5), (1, 6)], [(1, -1)]]


@versions(10, first=2)
async def test_a_commit_is_repeated_by_its_member_while_the_broker_has_neither_metadata_nor_group(
    services: GroupServices, version: int
) -> None:
    commit = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="later", topic_id=UNKNOWN_ID, partitions=[OffsetCommitRequestPartition()]
            )
        ],
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit_errors(await ask(services, offset_commit.handle, commit, version)) == [unknown]

    services.groups.leadership_changed(
        [], [(TopicPartition(GROUP_METADATA_TOPIC, number), 0) for number in range(PARTITIONS)]
    )

    answer = await ask(services, offset_commit.handle, commit, version)
    assert commit_errors(answer) == [ErrorCode.NOT_COORDINATOR]


@versions(10, first=8)
async def test_each_of_several_groups_has_its_own_error(services: GroupServices, version: int) -> None:
    services.groups.leadership_changed(
        [], [(TopicPartition(GROUP_METADATA_TOPIC, number), 0) for number in range(PARTITIONS)]
    )
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "h")]

    answer = await ask(services, offset_fetch.handle, OffsetFetchRequest(groups=asked), version)

    assert [(one.group_id, one.error_code, one.topics) for one in answer.groups] == [
        ("g", ErrorCode.NOT_COORDINATOR, []),
        ("h", ErrorCode.NOT_COORDINATOR, []),
    ]


async def test_an_unknown_topic_id_is_the_error_of_its_partitions(services: GroupServices) -> None:
    commit = a_commit({0: 5})
    partitions = [OffsetCommitRequestPartition(partition_index=3, committed_offset=1)]
    commit.topics.append(OffsetCommitRequestTopic(topic_id=UNKNOWN_ID, partitions=partitions))

    answer = await ask(services, offset_commit.handle, commit, 10)

    assert [topic.topic_id for topic in answer.topics] == [TOPIC_ID, UNKNOWN_ID]
    assert commit_errors(answer) == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    topics = [
        OffsetFetchRequestTopics(topic_id=TOPIC_ID, partition_indexes=[0]),
        OffsetFetchRequestTopics(topic_id=UNKNOWN_ID, partition_indexes=[3]),
    ]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    (group,) = (await ask(services, offset_fetch.handle, asked, 10)).groups
    assert [
        (topic.topic_id, one.partition_index, one.committed_offset, one.error_code)
        for topic in group.topics
        for one in topic.partitions
    ] == [(TOPIC_ID, 0, 5, 0), (UNKNOWN_ID, 3, -1, ErrorCode.UNKNOWN_TOPIC_ID)]


async def test_an_offset_of_a_deleted_topic_of_that_name_is_not_fetched_by_id(
    services: GroupServices,
) -> None:
    await ask(services, offset_commit.handle, a_commit({0: 5}), 10)
    services.metadata.forget("topic")
    tell(services.metadata, {"another": 1, "topic": 2})  # now with the id 2
    topics = [OffsetFetchRequestTopics(topic_id=UUID(int=2), partition_indexes=[0])]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])

    (group,) = (await ask(services, offset_fetch.handle, asked, 10)).groups

    assert [one.committed_offset for one in group.topics[0].partitions] == [-1]


async def test_a_retention_without_end_is_no_error(services: GroupServices) -> None:
    commit = a_commit({0: 5}, retention_time_ms=2**63 - 1)

    answer = await ask(services, offset_commit.handle, commit, 3)

    assert commit_errors(answer) == [ErrorCode.NONE]


async def test_offsets_of_unknown_partitions_are_refused(services: GroupServices) -> None:
    answer = await ask(services, offset_commit.handle, a_commit({0: 5, 2: 6}), 8)

    assert commit_errors(answer) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_version_0_keeps_offsets_in_zookeeper(services: GroupServices) -> None:
    assert fetched(await ask(services, offset_fetch.handle, a_fetch(0), 0)) == [
        (0, -1, "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]

    for number in (5, 5943):
        answer = await ask(services, offset_commit.handle, a_commit({0: number}), 0)
        assert commit_errors(answer) == [0]

    data, _ = await services.zookeeper.get("/consumers/g/offsets/topic/0")
    assert data == b"5943"
    assert fetched(await ask(services, offset_fetch.handle, a_fetch(0), 0)) == [(0, 5943, "", 0)]
    assert services.groups.offsets.fetch("g")[1] == {}


async def test_version_0_checks_metadata_and_partitions(services: GroupServices) -> None:
    long = await ask(services, offset_commit.handle, a_commit({0: 5, 2: 6}, metadata="x" * 11), 0)
    assert commit_errors(long) == [
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    request = a_commit({0: 5})
    request.group_id = "a/../b"
    assert commit_errors(await ask(services, offset_commit.handle, request, 0)) == [
        ErrorCode.INVALID_GROUP_ID
    ]


@versions(4, first=2)
async def test_a_commit_may_bring_its_own_retention(services: GroupServices, version: int) -> None:
    await ask(services, offset_commit.handle, a_commit({0: 5}, retention_time_ms=0), version)
    await ask(services, offset_commit.handle, a_commit({1: 5}, retention_time_ms=60_000), version)

    assert await services.groups.offsets.expire() == 1

    assert list(services.groups.offsets.fetch("g")[1]) == [TopicPartition("topic", 1)]


async def test_offsets_of_topics_without_subscribers_are_deleted(services: GroupServices) -> None:
    await ask(services, offset_commit.handle, a_commit({0: 5, 1: 6}), 5)
    indexes = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
    topics = [OffsetDeleteRequestTopic(name="topic", partitions=indexes)]

    answer = await ask(services, offset_delete.handle, OffsetDeleteRequest(group_id="g", topics=topics), 0)

    assert [one.error_code for one in answer.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert list(services.groups.offsets.fetch("g")[1]) == [TopicPartition("topic", 1)]


async def test_offsets_of_an_unknown_group_cannot_be_deleted(services: GroupServices) -> None:
    answer = await ask(services, offset_delete.handle, OffsetDeleteRequest(group_id="g"), 0)

    assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
