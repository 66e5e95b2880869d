"""Fetch since version 13: topics by id, alone and in sessions, and followers since version 15."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.testing import DataPlane, batch_of, topic_id_of
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.topics import TopicPartition

BY_ID = range(13, 19)
T, U = topic_id_of("t"), topic_id_of("u")


def asked(*topic_ids: UUID, offset: int = 0) -> list[FetchTopic]:
    return [
        FetchTopic(
            topic_id=one,
            partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)],
        )
        for one in topic_ids
    ]


async def fetched(plane: DataPlane, request: FetchRequest, version: int = 17) -> FetchResponse:
    arrived = FetchRequest.decode(request.encode(version), version)
    answer = fetch.handle(plane.services, arrived, plane.context(ApiKey.FETCH, version))
    if isinstance(answer, Awaitable):
        async with asyncio.timeout(60):
            answer = await answer
    parts = answer.encode_parts(version)
    body = b"".join(one if isinstance(one, bytes) else one.read() for one in parts)
    return FetchResponse.decode(body, version)


def partitions_of(response: FetchResponse) -> list[tuple[UUID, int, bool]]:
    """Topic id, error and whether there are records, of each partition."""
    return [
        (topic.topic_id, one.error_code, bool(one.records))
        for topic in response.responses
        for one in topic.partitions
    ]


async def filled(plane: DataPlane, *topics: str) -> None:
    for topic in topics:
        partition = await plane.lead(topic)
        partition.append(batch_of(b"a"), now_ms=1)


@pytest.mark.parametrize("version", BY_ID)
async def test_topics_are_fetched_by_id(plane: DataPlane, version: int) -> None:
    await filled(plane, "t", "u")

    answer = await fetched(plane, FetchRequest(min_bytes=1, topics=asked(U, T)), version)

    assert partitions_of(answer) == [(U, 0, True), (T, 0, True)]


@pytest.mark.parametrize("version", BY_ID)
async def test_an_unknown_id_is_the_error_of_its_partitions_alone(plane: DataPlane, version: int) -> None:
    await filled(plane, "t")
    unknown, none = UUID(int=1), UUID(int=0)

    answer = await fetched(plane, FetchRequest(topics=asked(unknown, T, none)), version)

    assert partitions_of(answer) == [
        (unknown, ErrorCode.UNKNOWN_TOPIC_ID, False),
        (T, 0, True),
        (none, ErrorCode.UNKNOWN_TOPIC_ID, False),
    ]


async def test_a_log_of_another_topic_of_that_name_is_inconsistent(plane: DataPlane) -> None:
    await filled(plane, "t")
    plane.topic_ids["t"] = UUID(int=2)
    plane.tell(TopicPartition("t", 0), 1)  # the metadata knows of the new topic, the log is the one before

    answer = await fetched(plane, FetchRequest(topics=asked(UUID(int=2), T)))

    assert partitions_of(answer) == [
        (UUID(int=2), ErrorCode.INCONSISTENT_TOPIC_ID, False),
        (T, ErrorCode.UNKNOWN_TOPIC_ID, False),
    ]


async def test_a_session_remembers_topics_by_id_and_forgets_them_by_id(plane: DataPlane) -> None:
    await filled(plane, "t", "u")
    first = await fetched(plane, FetchRequest(session_epoch=0, topics=asked(T, U)))
    assert [one[0] for one in partitions_of(first)] == [T, U]

    changed = FetchRequest(session_id=first.session_id, session_epoch=1, topics=asked(T, offset=1))
    assert [one[0] for one in partitions_of(await fetched(plane, changed))] == [U]

    gone = FetchRequest(session_id=first.session_id, session_epoch=2, topics=asked(T, offset=0))
    gone.forgotten_topics_data = [ForgottenTopic(topic_id=U, partitions=[0])]
    assert partitions_of(await fetched(plane, gone)) == [(T, 0, True)]


async def test_a_session_finds_a_topic_that_becomes_known_later(plane: DataPlane) -> None:
    first = await fetched(plane, FetchRequest(session_epoch=0, topics=asked(T)))
    assert partitions_of(first) == [(T, ErrorCode.UNKNOWN_TOPIC_ID, False)]

    await filled(plane, "t")

    again = FetchRequest(session_id=first.session_id, session_epoch=1)
    assert partitions_of(await fetched(plane, again)) == [(T, 0, True)]


async def test_a_topic_made_again_during_a_session_is_told_to_be_another(plane: DataPlane) -> None:
    await filled(plane, "t")
    first = await fetched(plane, FetchRequest(session_epoch=0, topics=asked(T)))
    await plane.replicas.stop([(TopicPartition("t", 0), -2, True)])
    plane.topic_ids["t"] = UUID(int=2)
    await filled(plane, "t")

    again = FetchRequest(session_id=first.session_id, session_epoch=1)
    answer = await fetched(plane, again)

    assert partitions_of(answer) == [(T, ErrorCode.INCONSISTENT_TOPIC_ID, False)]


@pytest.mark.parametrize(("begun", "then"), [(12, 13), (17, 12)])
async def test_a_session_by_name_does_not_go_on_by_id(plane: DataPlane, begun: int, then: int) -> None:
    await filled(plane, "t")
    named = asked(T)
    named[0].topic = "t"
    first = await fetched(plane, FetchRequest(session_epoch=0, topics=named), begun)
    assert first.session_id > 0

    answer = await fetched(plane, FetchRequest(session_id=first.session_id, session_epoch=1), then)

    assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, [])


@pytest.mark.parametrize("version", BY_ID)
async def test_a_follower_says_who_it_is(plane: DataPlane, version: int) -> None:
    partition = await plane.lead(isr=(1, 2), replicas=(1, 2))
    partition.append(batch_of(b"a"), now_ms=1)
    who: dict[str, Any] = {"replica_id": 2}
    if version >= 15:
        who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=7)}

    first = await fetched(plane, FetchRequest(topics=asked(T), **who), version)
    assert partitions_of(first) == [(T, 0, True)]  # beyond the high watermark
    await fetched(plane, FetchRequest(topics=asked(T, offset=1), **who), version)

    assert partition.high_watermark == 1


@pytest.mark.parametrize("version", [15, 17])
async def test_a_stranger_that_claims_to_be_a_follower_is_refused(plane: DataPlane, version: int) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2))
    plane.brokers.clear()
    who = ReplicaState(replica_id=2, replica_epoch=7)

    answer = await fetched(plane, FetchRequest(topics=asked(T), replica_state=who), version)

    assert partitions_of(answer) == [(T, ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)]


# ---- leaders elsewhere (KIP-951)


def told(one: PartitionData) -> tuple[int, int, int]:
    return one.error_code, one.current_leader.leader_id, one.current_leader.leader_epoch


@pytest.mark.parametrize("version", range(12, 19))
async def test_a_fetch_from_another_broker_than_the_leader_is_told_who_leads(
    plane: DataPlane, version: int
) -> None:
    await plane.lead(leader=2, leader_epoch=5, isr=(1, 2), replicas=(1, 2))
    topics = asked(T)
    topics[0].topic = "t"

    answer = await fetched(plane, FetchRequest(topics=topics), version)

    (one,) = answer.responses[0].partitions
    if version < 16:
        assert told(one) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
        assert answer.node_endpoints == []
        return
    assert told(one) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, 5)
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (2, "host-2", 9092, None)


async def test_a_fetch_in_an_earlier_epoch_is_told_the_present_one(plane: DataPlane) -> None:
    await plane.lead(leader_epoch=5)
    topics = asked(T)
    topics[0].partitions[0].current_leader_epoch = 4

    answer = await fetched(plane, FetchRequest(topics=topics))

    assert told(answer.responses[0].partitions[0]) == (ErrorCode.FENCED_LEADER_EPOCH, 1, 5)
    assert [one.node_id for one in answer.node_endpoints] == [1]
