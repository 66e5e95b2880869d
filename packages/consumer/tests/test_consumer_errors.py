"""Errors of some partitions, which must not cost others anything."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import ScriptedBroker
from ottla.consumer import Consumer, ConsumerConfig
from ottla.protocol.errors import CorruptMessage, ErrorCode, TopicAuthorizationFailed
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition

FAST = ConsumerConfig(
    auto_offset_reset="earliest", client=ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)
)
T, U = TopicPartition("t", 0), TopicPartition("u", 0)


class Topics:
    """Topics `t` and `u` with one partition each on a scripted broker, and errors to answer fetches with."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.values: dict[str, list[bytes]] = {"t": [], "u": []}
        self.errors: dict[str, list[int]] = defaultdict(list)
        self.damaged: set[str] = set()
        broker.on(
            MetadataRequest, lambda wanted: broker.metadata(*(t.name or "" for t in wanted.topics or ()))
        )
        broker.on(ListOffsetsRequest, self.offsets)
        broker.on(FetchRequest, self.fetch)

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        found = [
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        offset=0 if each.timestamp == -2 else len(self.values[topic.name]),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=found)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic, partitions=[self.data(topic.topic, each.fetch_offset)]
                )
                for topic in request.topics
                for each in topic.partitions
            ]
        )

    def data(self, topic: str, offset: int) -> PartitionData:
        if self.errors[topic]:
            return PartitionData(error_code=self.errors[topic].pop(0))
        builder = BatchBuilder()
        for value in self.values[topic][offset:]:
            builder.append(None, value, 0)
        records = bytearray(builder.build(base_offset=offset) if self.values[topic][offset:] else b"")
        if topic in self.damaged and records:
            records[-1] ^= 1
        return PartitionData(high_watermark=len(self.values[topic]), records=bytes(records))


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(60):
        return [(await anext(consumer)).value for _ in range(count)]


async def test_a_topic_whose_leader_was_forgotten_is_not_starved_by_another_that_has_one() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values = {"t": [b"from t"], "u": []}
        topics.errors["t"] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        async with Consumer("t", "u", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            assert await take(consumer, 1) == [b"from t"]


async def test_an_error_of_one_partition_does_not_cost_the_records_of_another() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values = {"t": [b"a", b"b"], "u": []}
        topics.errors["u"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        async with Consumer("t", "u", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            assert await take(consumer, 2) == [b"a", b"b"]
            with pytest.raises(TopicAuthorizationFailed, match="u-0"):
                await take(consumer, 1)


async def test_reading_continues_after_a_caught_error() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values = {"t": [], "u": [b"now"]}
        topics.errors["u"] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        async with Consumer("u", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            with pytest.raises(TopicAuthorizationFailed):
                await take(consumer, 1)

            assert await take(consumer, 1) == [b"now"]


async def test_a_damaged_batch_is_an_error_until_one_seeks_past_it() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values = {"t": [b"damaged"], "u": []}
        topics.damaged = {"t"}
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            for _ in range(2):
                with pytest.raises(CorruptMessage):
                    await take(consumer, 1)
            topics.damaged = set()
            topics.values["t"].append(b"whole")
            consumer.seek(T, 1)

            assert await take(consumer, 1) == [b"whole"]


async def test_a_damaged_log_raises_and_is_not_fetched_repeatedly() -> None:
    async with ScriptedBroker() as broker:
        Topics(broker).errors["t"] = [ErrorCode.CORRUPT_MESSAGE]
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            with pytest.raises(CorruptMessage, match="t-0 at offset 0"):
                await take(consumer, 1)


async def test_a_committed_offset_whose_lookup_was_cancelled_is_looked_up_again() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values["t"] = [b"a", b"b", b"c"]
        cancelled = asyncio.get_running_loop().create_future()
        broker.on(
            FindCoordinatorRequest,
            lambda _: FindCoordinatorResponse(node_id=1, host=broker.host, port=broker.port),
        )

        def committed(_: OffsetFetchRequest) -> OffsetFetchResponse:
            if not cancelled.done():
                reading.cancel()
                cancelled.set_result(None)
            found = OffsetFetchResponsePartition(partition_index=0, committed_offset=2)
            return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[found])])

        broker.on(OffsetFetchRequest, committed)
        async with Consumer(
            bootstrap_servers=broker.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            consumer.assign([T])
            reading = asyncio.ensure_future(take(consumer, 1))
            with pytest.raises(asyncio.CancelledError):
                await reading

            assert await take(consumer, 1) == [b"c"]


async def test_a_partition_that_is_assigned_again_begins_where_the_group_stands() -> None:
    async with ScriptedBroker() as broker:
        topics = Topics(broker)
        topics.values["t"] = [b"a", b"b", b"c"]
        broker.on(
            FindCoordinatorRequest,
            lambda _: FindCoordinatorResponse(node_id=1, host=broker.host, port=broker.port),
        )
        offsets = {"t": iter((1, 2)), "u": iter((0,))}

        def committed(request: OffsetFetchRequest) -> OffsetFetchResponse:
            assert request.topics is not None
            (topic,) = request.topics
            found = OffsetFetchResponsePartition(
                partition_index=0, committed_offset=next(offsets[topic.name])
            )
            return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name=topic.name, partitions=[found])])

        broker.on(OffsetFetchRequest, committed)
        async with Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as consumer:
            consumer.assign([T])
            assert await consumer.position(T) == 1
            consumer.assign([U])
            assert await consumer.position(U) == 0
            consumer.assign([T])

            assert await consumer.position(T) == 2
