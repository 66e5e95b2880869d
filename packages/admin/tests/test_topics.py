"""Topics that an attempt without an answer has created, enlarged or deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.admin.topics import CreatedTopic
from ottla.client.cluster import NoSuchTopic
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import ErrorCode, InvalidPartitions, TopicAlreadyExists
from ottla.protocol.messages import configs as describing
from ottla.protocol.messages import topics as messages
from ottla.protocol.messages.metadata import MetadataRequest

LEADERLESS = -1


def created(code: ErrorCode) -> messages.CreateTopicsResponse:
    topics = [messages.CreatableTopicResult(name="orders", error_code=code)]
    return messages.CreateTopicsResponse(topics=topics)


def enlarged(code: ErrorCode) -> messages.CreatePartitionsResponse:
    results = [messages.CreatePartitionsTopicResult(name="orders", error_code=code)]
    return messages.CreatePartitionsResponse(results=results)


def deleted(code: ErrorCode) -> messages.DeleteTopicsResponse:
    responses = [messages.DeletableTopicResult(name="orders", error_code=code)]
    return messages.DeleteTopicsResponse(responses=responses)


def one_after_the_other(*answers: Any) -> Callable[[Any], Any]:
    """Give these answers, and the last one again and again; None closes the connection."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def with_metadata(broker: ScriptedBroker, *leaders: int, partitions: int = 3) -> None:
    answers = [broker.metadata("orders", partitions=partitions, leader=each) for each in leaders or (1,)]
    broker.on(MetadataRequest, one_after_the_other(*answers))


@pytest.mark.parametrize("first", [None, created(ErrorCode.REQUEST_TIMED_OUT)], ids=["closed", "timed out"])
async def test_a_topic_is_created_when_the_repetition_finds_it_as_asked_for(first: Any) -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        exists = created(ErrorCode.TOPIC_ALREADY_EXISTS)
        broker.on(messages.CreateTopicsRequest, one_after_the_other(first, exists))
        async with Admin(broker.bootstrap_servers) as admin:
            with_metadata(broker, LEADERLESS, LEADERLESS, 1)

            found = await admin.topics.create("orders", partitions=3, replication_factor=1)

    assert found == CreatedTopic("orders", 3, 1)
    assert len(broker.seen(messages.CreateTopicsRequest)) > 2  # it waited for the leaders


@pytest.mark.parametrize(
    "asked",
    [
        {"partitions": 4},
        {"partitions": 3, "replication_factor": 2},
        {"assignments": {0: [1], 1: [1], 2: [2]}},
        {"partitions": 3, "configs": {"retention.ms": "7"}},
    ],
    ids=["partitions", "replicas", "assignment", "configuration"],
)
async def test_a_topic_that_differs_from_the_one_asked_for_is_somebody_elses(asked: dict[str, Any]) -> None:
    entry = describing.DescribeConfigsResourceResult(name="retention.ms", value="8")
    async with ScriptedBroker() as broker:
        with_metadata(broker)
        result = describing.DescribeConfigsResult(resource_type=2, resource_name="orders", configs=[entry])
        broker.on(
            describing.DescribeConfigsRequest, lambda _: describing.DescribeConfigsResponse(results=[result])
        )
        exists = created(ErrorCode.TOPIC_ALREADY_EXISTS)
        broker.on(messages.CreateTopicsRequest, one_after_the_other(None, exists))
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(TopicAlreadyExists):
                await admin.topics.create("orders", **asked)


async def test_a_topic_that_the_first_attempt_finds_is_somebody_elses() -> None:
    async with ScriptedBroker() as broker:
        with_metadata(broker)
        broker.on(messages.CreateTopicsRequest, lambda _: created(ErrorCode.TOPIC_ALREADY_EXISTS))
        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(TopicAlreadyExists):
                await admin.topics.create("orders", partitions=3)


async def test_a_topic_that_exists_is_returned_as_it_is_where_that_is_enough() -> None:
    async with ScriptedBroker() as broker:
        with_metadata(broker, LEADERLESS, 1)
        broker.on(messages.CreateTopicsRequest, lambda _: created(ErrorCode.TOPIC_ALREADY_EXISTS))
        async with Admin(broker.bootstrap_servers) as admin:
            found = await admin.topics.create("orders", partitions=7, if_not_exists=True)

    assert found == CreatedTopic("orders", 3, 1, existed=True)  # another number than was asked for


async def test_partitions_are_added_when_the_repetition_finds_as_many() -> None:
    async with ScriptedBroker() as broker:
        with_metadata(broker)
        as_many = enlarged(ErrorCode.INVALID_PARTITIONS)
        broker.on(messages.CreatePartitionsRequest, one_after_the_other(None, as_many, None, as_many))
        async with Admin(broker.bootstrap_servers) as admin:
            await admin.topics.add_partitions("orders", 3)
            with pytest.raises(InvalidPartitions):
                await admin.topics.add_partitions("orders", 2)


async def test_a_topic_is_deleted_when_the_repetition_does_not_find_it() -> None:
    async with ScriptedBroker() as broker:
        with_metadata(broker)
        unknown = deleted(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        broker.on(messages.DeleteTopicsRequest, one_after_the_other(None, unknown))
        async with Admin(broker.bootstrap_servers) as admin:
            await admin.topics.delete("orders")
            with pytest.raises(NoSuchTopic):
                await admin.topics.delete("orders")
