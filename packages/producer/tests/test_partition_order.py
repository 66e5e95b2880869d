"""The order of batches where a partition's leader or its whole log changes."""

from __future__ import annotations

import asyncio
from itertools import count
from uuid import UUID

import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.producer import DeliveryTimeout, Producer, ProducerConfig
from ottla.producer.accumulator import Accumulator, Appender
from ottla.producer.sender.partition_order import PartitionOrder
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.records import read_header
from peers.accepting_broker import batches, serving

QUICK = ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)


def two_brokers(first: ScriptedBroker, second: ScriptedBroker, leader: int) -> MetadataResponse:
    answer = first.metadata("t", leader=leader)
    answer.brokers = [
        MetadataResponseBroker(node_id=node, host=each.host, port=each.port)
        for node, each in ((NODE_ID, first), (NODE_ID + 1, second))
    ]
    return answer


async def test_nothing_is_sent_to_a_new_leader_before_the_old_one_answered() -> None:
    async with serving(ScriptedBroker()) as old, serving(ScriptedBroker()) as new:
        leader = NODE_ID
        for broker in (old, new):
            broker.on(MetadataRequest, lambda _: two_brokers(old, new, leader))
        config = ProducerConfig(client=QUICK, linger_ms=0)
        async with asyncio.timeout(60), Producer(old.bootstrap_servers, config=config) as producer:
            await producer.send_and_wait("t", b"0")
            old.ignore(ProduceRequest)
            first = await producer.send("t", b"1")
            await until(lambda: len(old.seen(ProduceRequest)) == 2)
            leader = NODE_ID + 1
            moved = two_brokers(old, new, leader).topics[0]
            producer._cluster._remember(moved, asyncio.get_running_loop().time())
            second = await producer.send("t", b"2")
            for _ in range(3):  # what the sender sends at once arrives before these
                await producer._cluster.send(leader, MetadataRequest(topics=[]), MetadataResponse)
            overtook = len(new.seen(ProduceRequest))
            old.drop_connections()
            await first
            await second

    assert overtook == 0
    assert [read_header(each).base_sequence for each in batches(new)] == [1, 2]


async def test_numbering_starts_anew_when_a_topic_was_deleted_and_created_again() -> None:
    topic_id = UUID(int=1)

    def metadata(_: MetadataRequest) -> MetadataResponse:
        answer = broker.metadata("t")
        answer.topics[0].topic_id = topic_id
        return answer

    async with serving(ScriptedBroker()) as broker:
        ids = count(9)
        broker.on(MetadataRequest, metadata)
        broker.on(
            InitProducerIdRequest,
            lambda _: InitProducerIdResponse(producer_id=next(ids), producer_epoch=0),
        )
        config = ProducerConfig(client=QUICK)
        async with asyncio.timeout(60), Producer(broker.bootstrap_servers, config=config) as producer:
            for _ in range(2):
                await producer.send_and_wait("t", b"old")
            topic_id = UUID(int=2)
            producer._cluster.forget("t")
            await producer.send_and_wait("t", b"new")

    headers = [read_header(each) for each in batches(broker)]
    assert [(each.producer_id, each.base_sequence) for each in headers] == [(9, 0), (9, 1), (10, 0)]


def test_after_a_pause_the_first_batch_is_sent_alone() -> None:
    now_ms = 0.0
    order = PartitionOrder(lambda: now_ms)
    accumulator = Accumulator(
        batch_size=1, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    appender, topic = Appender(accumulator), accumulator.update_topic("t", 1, [0])
    for _ in range(5):
        appender.append(topic, None, b"x", 0, None, None)
    one, two, three, four, five = accumulator.incomplete_batches()

    def send(batch: object) -> None:
        accumulator.drain(batch)  # type: ignore[arg-type]
        order.sent(batch, NODE_ID)  # type: ignore[arg-type]

    def answer(batch: object) -> None:
        accumulator.finish(batch)  # type: ignore[arg-type]
        order.ended(batch)  # type: ignore[arg-type]

    send(one)
    assert not order.may_follow(two, NODE_ID)
    answer(one)
    send(two)
    assert order.may_follow(three, NODE_ID)
    assert not order.may_follow(three, NODE_ID + 1)
    send(three)
    answer(two)
    answer(three)

    now_ms = 60_000.0
    order.forget_idle()
    send(four)
    assert not order.may_follow(five, NODE_ID)
    answer(four)
    send(five)
    answer(five)


async def test_the_delivery_timeout_of_a_deleted_topic_names_its_cause() -> None:
    async with serving(ScriptedBroker()) as broker:
        config = ProducerConfig(
            delivery_timeout_ms=1_500, linger_ms=0, client=ClientConfig(request_timeout_ms=1_000)
        )
        async with Producer(broker.bootstrap_servers, config=config) as producer:
            await producer.send_and_wait("t", b"x")
            gone = MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answer = broker.metadata()
            answer.topics = [gone]
            broker.on(MetadataRequest, lambda _: answer)
            producer._cluster.forget("t")
            with pytest.raises(DeliveryTimeout, match="topic 't' does not exist"):
                await producer.send_and_wait("t", b"y")


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]  # noqa: ASYNC110
        await asyncio.sleep(0.001)
