"""When a broker that starts knows enough of the cluster to answer Metadata."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

import pytest

from ottla.broker.api import metadata as metadata_handler
from ottla.broker.api.group_testing import BROKER, tell
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.metadata import (
    KNOWN_WITHIN_MS,
    BrokerEndpoint,
    KnownBroker,
    KnownPartition,
    MetadataCache,
)
from ottla.broker.config import BrokerConfig
from ottla.broker.controller.testing import LoopClock, run_in_virtual_time
from ottla.broker.requests.context import RequestContext
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import UpdateMetadataBroker, UpdateMetadataRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.topics import TopicPartition

BOUND_S = 20
CONTROLLER = BROKER + 1
"""Another broker, of Apache Kafka: it has just been elected, and tells of brokers first."""


class ZooKeeper:
    """Says how many partitions have leaders, in one answer after the other, and counts the questions."""

    def __init__(self, *answers: dict[str, int] | None) -> None:
        self._answers = answers
        self.asked = 0

    async def published(self) -> dict[str, int] | None:
        self.asked += 1
        await asyncio.sleep(0)
        return self._answers[min(self.asked, len(self._answers)) - 1]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def told_in_parts() -> MetadataCache:
    metadata = MetadataCache(BROKER)
    tell(metadata, {}, controller=CONTROLLER)
    return metadata


@pytest.mark.parametrize("part", [{}, {"orders": 1}, {"orders": 2}, {"payments": 1}])
async def test_a_part_of_the_cluster_is_not_the_cluster(part: dict[str, int]) -> None:
    metadata = MetadataCache(BROKER)
    zookeeper = ZooKeeper({"orders": 2, "payments": 1})
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        knows = tasks.create_task(metadata.known(zookeeper.published))
        await turns()
        tell(metadata, {}, controller=CONTROLLER)
        tell(metadata, part, controller=CONTROLLER)
        await turns()
        assert not knows.done()

        tell(metadata, {"orders": 2, "payments": 1}, controller=CONTROLLER)
        assert await knows


async def test_a_controller_that_runs_tells_of_everything_at_once() -> None:
    metadata = MetadataCache(BROKER)
    tell(metadata, {"orders": 2}, controller=CONTROLLER)
    zookeeper = ZooKeeper({"orders": 2, "created now": 1})

    assert await metadata.known(zookeeper.published)
    assert zookeeper.asked == 0


async def test_one_of_many_requests_asks_zookeeper() -> None:
    metadata, zookeeper = told_in_parts(), ZooKeeper({"orders": 2})
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(metadata.known(zookeeper.published)) for _ in range(5)]
        await turns()
        tell(metadata, {"orders": 2}, controller=CONTROLLER)

    assert [one.result() for one in requests] == [True] * 5
    assert zookeeper.asked == 1


async def test_a_silent_zookeeper_is_asked_once_for_all_requests_and_again_for_a_later_one() -> None:
    metadata, zookeeper = told_in_parts(), ZooKeeper(None, {})
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(metadata.known(zookeeper.published)) for _ in range(5)]

    assert [one.result() for one in requests] == [False] * 5
    assert zookeeper.asked == 1
    assert await metadata.known(zookeeper.published)


def test_a_topic_that_is_deleted_meanwhile_is_not_waited_for() -> None:
    zookeeper = ZooKeeper({"deleted": 1}, {})

    async def known() -> bool:
        return await told_in_parts().known(zookeeper.published)

    assert run_in_virtual_time(known())
    assert zookeeper.asked == 2


def test_any_partition_may_exist_until_the_broker_is_told_of_the_cluster() -> None:
    metadata = MetadataCache(BROKER)
    assert metadata.may_exist(TopicPartition("orders", 0))

    tell(metadata, {"orders": 1})

    assert metadata.may_exist(TopicPartition("orders", 0))
    assert not metadata.may_exist(TopicPartition("orders", 1))


async def test_any_partition_may_exist_until_the_broker_is_told_of_the_rest() -> None:
    metadata = told_in_parts()
    tell(metadata, {"orders": 1}, controller=CONTROLLER)
    assert metadata.may_exist(TopicPartition("orders", 1))

    assert await metadata.known(ZooKeeper({"orders": 1}).published)

    assert not metadata.may_exist(TopicPartition("orders", 1))


def test_a_broker_that_is_the_controller_knows_that_there_are_no_topics() -> None:
    metadata = MetadataCache(BROKER)
    tell(metadata, {})

    assert not metadata.may_exist(TopicPartition("orders", 0))


async def test_a_cluster_without_topics_is_known_with_its_brokers() -> None:
    metadata = MetadataCache(BROKER)
    tell(metadata, {})

    assert await metadata.known(ZooKeeper({}).published)


def test_a_topic_that_nobody_tells_of_is_waited_for_once() -> None:
    zookeeper = ZooKeeper({"silent": 1})

    async def waited_ms() -> list[float]:
        metadata, clock = told_in_parts(), LoopClock()
        times = [clock.monotonic_ms()]
        for _ in range(3):
            assert await metadata.known(zookeeper.published)
            times.append(clock.monotonic_ms())
        return [after - before for before, after in pairwise(times)]

    assert run_in_virtual_time(waited_ms()) == pytest.approx([KNOWN_WITHIN_MS, 0, 0], abs=10)


class Parts:
    """The parts that Metadata uses, before any controller has told of the cluster."""

    cluster_id = "cluster"
    config = BrokerConfig()

    def __init__(self) -> None:
        self.metadata = MetadataCache(BROKER)
        # Nothing may be created by a broker that does not know which topics there are.
        self.topics: Any = ZooKeeper({"orders": 2})


def asking() -> tuple[MetadataRequest, RequestContext]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=True)
    return request, RequestContext(RequestHeader(ApiKey.METADATA, 9, 1, "test"), FakeSession(), 0.0)


async def test_a_broker_that_nobody_tells_has_clients_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.broker.cluster.metadata.KNOWN_WITHIN_MS", 1.0)

    answer = await metadata_handler.handle(Parts(), *asking())

    assert [(one.name, one.error_code) for one in answer.topics] == [
        ("orders", ErrorCode.LEADER_NOT_AVAILABLE)
    ]


@pytest.mark.parametrize("told", [[], [{}], [{}, {"payments": 1}]])
async def test_a_client_that_asks_for_all_topics_is_never_shown_a_part_of_them(
    told: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.cluster.metadata.KNOWN_WITHIN_MS", 1.0)
    parts = Parts()
    parts.topics = ZooKeeper(None)
    for part in told:
        tell(parts.metadata, part, controller=CONTROLLER)
    _, context = asking()

    answer = await metadata_handler.handle(parts, MetadataRequest(topics=None), context)

    # Clients ignore an answer without brokers, and ask again.
    assert (answer.brokers, answer.topics) == ([], [])


async def test_a_client_is_never_shown_a_part_of_a_topic_that_a_new_controller_tells_of_first() -> None:
    parts = Parts()
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        answers = tasks.create_task(metadata_handler.handle(parts, *asking()))
        for told in ({}, {"payments": 1}, {"orders": 1}):
            await turns()
            tell(parts.metadata, told, controller=CONTROLLER)
        await turns()
        tell(parts.metadata, {"orders": 2}, controller=CONTROLLER)

    [topic] = answers.result().topics
    assert topic.error_code == ErrorCode.NONE
    assert [one.partition_index for one in topic.partitions] == [0, 1]


class Interrupted(RequestContext):
    """A request during which the controller tells that all other brokers have gone, after each item."""

    def __init__(self, metadata: MetadataCache) -> None:
        _, context = asking()
        super().__init__(context.header, context.session, 0.0)
        self._metadata = metadata

    async def paced(self, items: Iterable[Any]) -> AsyncIterator[Any]:  # type: ignore[override]
        for item in items:
            yield item
            told = UpdateMetadataRequest(live_brokers=[UpdateMetadataBroker(id=BROKER)])
            self._metadata.update(told)


@pytest.mark.parametrize("asked", [None, [MetadataRequestTopic(name="orders")]])
async def test_every_leader_in_an_answer_is_among_its_brokers(
    asked: list[MetadataRequestTopic] | None,
) -> None:
    parts = Parts()
    parts.config = BrokerConfig(auto_create_topics_enable=False)
    tell(parts.metadata, {"orders": 2})
    known = parts.metadata.topic("orders")
    assert known is not None
    led = (CONTROLLER,)
    known.partitions = {n: KnownPartition(n, CONTROLLER, 0, led, led, (), 0, 0) for n in known.partitions}
    listener = asking()[1].session.listener_name
    other = KnownBroker(CONTROLLER, {listener: BrokerEndpoint("other", 9092)})
    parts.metadata._brokers = dict(parts.metadata.alive) | {CONTROLLER: other}

    answer = await metadata_handler.handle(parts, MetadataRequest(topics=asked), Interrupted(parts.metadata))

    ids = {one.node_id for one in answer.brokers}
    leaders = {one.leader_id for topic in answer.topics for one in topic.partitions}
    assert leaders - {-1} <= ids
    assert len(answer.topics[0].partitions) == 2
