"""When a broker that starts knows enough of the cluster to answer Metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.handlers import metadata as metadata_handler
from ottla.broker.handlers.group_testing import BROKER, tell
from ottla.broker.handlers.request_context import RequestContext
from ottla.broker.handlers.testing import FakeSession
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import RequestHeader
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.topics import TopicPartition

Existing = Callable[[], Awaitable[frozenset[str] | None]]


def zookeeper_has(*topics: str) -> Existing:
    async def existing() -> frozenset[str]:
        return frozenset(topics)

    return existing


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_brokers_without_topics_are_not_the_cluster_where_topics_exist() -> None:
    metadata = MetadataCache(BROKER)
    async with asyncio.TaskGroup() as tasks:
        knows = tasks.create_task(metadata.known(zookeeper_has("orders")))
        await turns()
        tell(metadata, {})  # as a new controller of Apache Kafka does first
        await turns()
        assert not knows.done()

        tell(metadata, {"orders": 2})
        await knows


def test_any_partition_may_exist_until_the_broker_is_told_of_the_cluster() -> None:
    metadata = MetadataCache(BROKER)
    assert metadata.may_exist(TopicPartition("orders", 0))

    tell(metadata, {"orders": 1})

    assert metadata.may_exist(TopicPartition("orders", 0))
    assert not metadata.may_exist(TopicPartition("orders", 1))


async def test_a_cluster_without_topics_is_known_with_its_brokers() -> None:
    metadata = MetadataCache(BROKER)
    tell(metadata, {})

    await metadata.known(zookeeper_has())


async def test_a_topic_that_nobody_tells_of_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.cluster.metadata.KNOWN_WITHIN_MS", 1.0)
    metadata = MetadataCache(BROKER)
    tell(metadata, {})
    asked = 0

    async def existing() -> frozenset[str]:
        nonlocal asked
        asked += 1
        return frozenset({"deleted"})

    for _ in range(3):
        await metadata.known(existing)

    assert asked == 1


class TopicsOfZooKeeper:
    """Knows which topics there are; nothing may be created by a broker that does not."""

    async def existing(self) -> frozenset[str]:
        return frozenset({"orders"})


class Parts:
    """The parts that Metadata uses, before any controller has told of the cluster."""

    cluster_id = "cluster"
    config = BrokerConfig()

    def __init__(self) -> None:
        self.metadata = MetadataCache(BROKER)
        self.topics: Any = TopicsOfZooKeeper()


async def test_a_broker_that_nobody_tells_has_clients_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.cluster.metadata.KNOWN_WITHIN_MS", 1.0)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=True)
    context = RequestContext(RequestHeader(ApiKey.METADATA, 9, 1, "test"), FakeSession(), 0.0)

    answer = await metadata_handler.handle(Parts(), request, context)

    assert [(one.name, one.error_code) for one in answer.topics] == [
        ("orders", ErrorCode.LEADER_NOT_AVAILABLE)
    ]
