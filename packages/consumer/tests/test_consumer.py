from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import ScriptedBroker
from ottla.consumer import Consumer, ConsumerClosed, ConsumerConfig, ConsumerStopped, NoOffset
from ottla.protocol.errors import ErrorCode, TopicAuthorizationFailed
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition

FAST = ConsumerConfig(
    auto_offset_reset="earliest", client=ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)
)
T0 = TopicPartition("t", 0)


class Log:
    """A topic `t` with one partition on a scripted broker."""

    def __init__(self, broker: ScriptedBroker, *values: bytes, start: int = 0) -> None:
        self.values = list(values)
        self.start = start
        self.errors: list[int] = []
        broker.on(MetadataRequest, lambda _: broker.metadata("t"))
        broker.on(ListOffsetsRequest, self.offsets)
        broker.on(FetchRequest, self.fetch)

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        wanted = request.topics[0].partitions[0].timestamp
        found = ListOffsetsPartitionResponse(offset=self.start if wanted == -2 else self.end)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])

    def fetch(self, request: FetchRequest) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        data = PartitionData(high_watermark=self.end)
        if self.errors:
            data.error_code = self.errors.pop(0)
        elif not self.start <= offset <= self.end:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset < self.end:
            builder = BatchBuilder()
            for value in self.values[offset - self.start :][:2]:
                builder.append(None, value, 0)
            data.records = builder.build(base_offset=offset)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(60):
        return [(await anext(consumer)).value for _ in range(count)]


async def test_records_come_in_order_across_fetches() -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"a", b"b", b"c", b"d", b"e")
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            assert await take(consumer, 5) == [b"a", b"b", b"c", b"d", b"e"]
            assert await consumer.position(T0) == 5


async def test_a_seek_invalidates_buffered_data_and_outstanding_fetches() -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"a", b"b", b"c", b"d")
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            await take(consumer, 1)
            consumer.seek(T0, 3)

            assert await take(consumer, 1) == [b"d"]
            assert await consumer.position(T0) == 4


async def test_the_latest_offset_is_where_reading_begins_by_default() -> None:
    async with ScriptedBroker() as broker:
        log = Log(broker, b"old")
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers) as consumer:
            assert await consumer.position(T0) == 1
            log.values.append(b"new")

            assert await take(consumer, 1) == [b"new"]


async def test_an_offset_that_left_the_log_begins_again_as_configured() -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"x", start=50)
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            consumer.seek(T0, 3)

            assert await take(consumer, 1) == [b"x"]


async def test_without_a_reset_an_offset_that_left_the_log_is_an_error() -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"x", start=50)
        with pytest.raises(NoOffset, match="t-0"):
            async with Consumer(
                "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="none"
            ) as consumer:
                consumer.seek(T0, 3)
                await take(consumer, 1)


async def test_a_leader_that_moved_is_looked_up_again() -> None:
    async with ScriptedBroker() as broker:
        log = Log(broker, b"a")
        log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH]
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            assert await take(consumer, 1) == [b"a"]

    assert len(broker.seen(MetadataRequest)) >= 3


async def test_a_broken_connection_is_survived() -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"a", b"b", b"c")
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            await take(consumer, 1)
            broker.drop_connections()

            assert await take(consumer, 2) == [b"b", b"c"]


async def test_what_will_not_pass_is_raised_to_the_reader() -> None:
    async with ScriptedBroker() as broker:
        log = Log(broker, b"a")
        log.errors = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(TopicAuthorizationFailed):
            async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
                await take(consumer, 1)


async def test_a_poll_of_nothing_ends_in_time() -> None:
    async with ScriptedBroker() as broker:
        Log(broker)
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
            assert await consumer.getmany(timeout_ms=20) == {}


async def test_a_commit_without_a_group_says_what_is_missing() -> None:
    async with ScriptedBroker() as broker:
        Log(broker)
        async with Consumer("t", bootstrap_servers=broker.bootstrap_servers) as consumer:
            with pytest.raises(ValueError, match="group_id"):
                await consumer.commit()


@pytest.mark.parametrize("iterate", [lambda each: each, lambda each: each.batches()])
async def test_an_iteration_ends_when_another_task_stops_the_consumer(
    iterate: Callable[[Consumer], AsyncIterator[object]],
) -> None:
    async with ScriptedBroker() as broker:
        Log(broker, b"a", b"b")
        consumer = Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST)
        await consumer.start()
        seen = asyncio.Event()

        async def read() -> None:
            async for _ in iterate(consumer):
                seen.set()

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read())
            await seen.wait()
            await consumer.stop()
            await reading
        assert [record async for record in consumer] == []


async def test_calls_for_records_raise_when_another_task_stops_the_consumer() -> None:
    async with ScriptedBroker() as broker:
        Log(broker)
        consumer = Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=FAST)
        await consumer.start()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(_error_of(consumer.getone())),
                tasks.create_task(_error_of(consumer.getmany(timeout_ms=None))),
            ]
            await asyncio.sleep(0)
            await consumer.stop()
        assert [type(await each) for each in waiting] == [ConsumerStopped, ConsumerStopped]


async def _error_of(call: Awaitable[object]) -> BaseException | None:
    try:
        await call
    except ConsumerClosed as error:
        return error
    return None
