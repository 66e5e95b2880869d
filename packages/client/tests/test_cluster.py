from __future__ import annotations

import pytest

from ottla.client.cluster import Cluster, NoSuchTopic
from ottla.client.config import ClientConfig, parse_bootstrap_servers
from ottla.client.errors import DeadlineExceeded, NoBrokerAvailable
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import ErrorCode, LeaderNotAvailable, UnknownTopicOrPartition
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from ottla.protocol.topics import TopicPartition

IMPATIENT = ClientConfig(default_api_timeout_ms=300, retry_backoff_ms=5, retry_backoff_max_ms=20)


async def test_a_topic_is_asked_for_once_and_then_known() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders", partitions=3))
        async with Cluster(broker.bootstrap_servers) as cluster:
            topic = await cluster.topic("orders")
            asked = len(broker.requests)
            await cluster.topic("orders")

            assert sorted(topic.partitions) == [0, 1, 2]
            assert len(broker.requests) == asked


async def test_the_leader_of_a_partition_is_found_and_forgotten_when_it_moved() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Cluster(broker.bootstrap_servers) as cluster:
            assert await cluster.leader(TopicPartition("orders", 0)) == (NODE_ID, 0)

            cluster.forget("orders")
            broker.on(MetadataRequest, lambda _: broker.metadata("orders", leader=-1))
            with pytest.raises(LeaderNotAvailable):
                await cluster.leader(TopicPartition("orders", 0))
            with pytest.raises(UnknownTopicOrPartition):
                await cluster.leader(TopicPartition("orders", 7))


async def test_a_topic_being_created_is_waited_for() -> None:
    async with ScriptedBroker() as broker:
        answers = [_without("new", ErrorCode.LEADER_NOT_AVAILABLE, broker)] * 3
        broker.on(MetadataRequest, lambda _: answers.pop() if answers else broker.metadata("new"))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            assert (await cluster.topic("new", may_create=True)).name == "new"


async def test_a_topic_that_does_not_exist_is_named() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: _without("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, broker))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            with pytest.raises(NoSuchTopic, match="'x'"):
                await cluster.topic("x")


async def test_a_broken_connection_is_made_anew() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Cluster(broker.bootstrap_servers, IMPATIENT) as cluster:
            cluster.forget("orders")
            broker.drop_connections()

            assert (await cluster.topic("orders")).name == "orders"
            assert broker.connections == 2


async def test_no_broker_at_all_ends_at_the_deadline_and_says_whom_it_tried() -> None:
    async with ScriptedBroker() as broker:
        gone = broker.bootstrap_servers

    with pytest.raises(DeadlineExceeded, match=gone) as caught:
        await Cluster(gone, IMPATIENT).__aenter__()
    assert isinstance(caught.value.__cause__, NoBrokerAvailable)


def test_bootstrap_servers_are_read_in_every_usual_form() -> None:
    assert parse_bootstrap_servers("a:1, b ,[::1]:3,[::1]") == [
        ("a", 1),
        ("b", 9092),
        ("::1", 3),
        ("::1", 9092),
    ]
    assert parse_bootstrap_servers(["a:1", "b:2"]) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("wrong", ["", ",", "a:b", "a:0", "a:70000", ":9092", "a:1:2"])
def test_an_address_that_cannot_be_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"host:port"):
        parse_bootstrap_servers(wrong)


def _without(name: str, error: ErrorCode, broker: ScriptedBroker) -> MetadataResponse:
    answer = broker.metadata()
    answer.topics = [MetadataResponseTopic(name=name, error_code=error)]
    return answer
