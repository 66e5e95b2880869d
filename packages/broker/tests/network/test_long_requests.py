"""Requests with long lists: read in steps, limited, and given up when their client goes."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.testing import Client, server_of, string
from ottla.broker.requests.authorization import RequestAuthorization, from_follower
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.routes import Route, Routes
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import ListOffsetsRequest, ListOffsetsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse

BOUND_S = 30
LIMIT = 5_000


class Handlers:
    """Handlers that count what they are asked."""

    def __init__(self) -> None:
        self.elements = 0
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.produced: list[int] = []
        self.go_on.set()

    async def metadata(
        self, services: None, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        names = [str(one.name) async for one in context.paced(request.topics or [])]
        self.elements += len(names)
        topics = [MetadataResponseTopic(name=name) async for name in context.paced(names)]
        return MetadataResponse(topics=topics)

    async def list_offsets(
        self, services: None, request: ListOffsetsRequest, context: RequestContext
    ) -> ListOffsetsResponse:
        self.elements += sum(len(one.partitions) for one in request.topics)
        return ListOffsetsResponse()

    async def offset_fetch(
        self, services: None, request: OffsetFetchRequest, context: RequestContext
    ) -> OffsetFetchResponse:
        """Work until the client has gone: each element takes as long as a turn of the loop may."""
        async for _ in context.paced(range(1_000_000)):
            self.elements += 1
            self.begun.set()
            context.budget.long_requests.charge(100)
        return OffsetFetchResponse()

    def produce(
        self, services: None, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | Awaitable[ProduceResponse]:
        if context.is_long:
            return self._produced_later(request, context)
        self.produced.append(request.timeout_ms)
        return ProduceResponse()

    async def _produced_later(self, request: ProduceRequest, context: RequestContext) -> ProduceResponse:
        for topic in request.topic_data:
            async for one in context.paced(topic.partition_data):
                assert one.records is not None
                assert bytes(one.records) == b"records"
        await self.go_on.wait()
        self.produced.append(request.timeout_ms)
        return ProduceResponse()

    @property
    def routes(self) -> Routes[None]:
        return Routes(
            [
                Route(ApiKey.METADATA, 0, 1, self.metadata),
                Route(ApiKey.LIST_OFFSETS, 0, 1, self.list_offsets, of_brokers=from_follower),
                Route(ApiKey.OFFSET_FETCH, 0, 5, self.offset_fetch),
                Route(ApiKey.PRODUCE, 3, 3, self.produce, borrows_buffer=True),
            ]
        )


class FixedAccess(RequestAuthorization):
    """Takes all senders for brokers, or none."""

    def __init__(self, are_brokers: bool) -> None:
        super().__init__()
        self._are_brokers = are_brokers

    async def is_broker(self, context: RequestContext) -> bool:
        return self._are_brokers


@asynccontextmanager
async def client_of(handlers: Handlers, *, of_broker: bool = False) -> AsyncIterator[Client]:
    access = FixedAccess(of_broker)
    dispatcher = Dispatcher(handlers.routes, None, max_elements=LIMIT, access=access)
    async with server_of(handlers.routes, dispatcher=dispatcher) as server:
        host, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        client = Client(reader, writer)
        try:
            yield client
        finally:
            writer.close()


def request(key: ApiKey, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    return struct.pack(">hhi", key, version, correlation_id) + string("test") + body


def names(count: int) -> bytes:
    return struct.pack(">i", count) + b"".join(string(f"name-{number}") for number in range(count))


def offsets(count: int, replica_id: int = -1) -> bytes:
    one = struct.pack(">iq", 0, -1)
    return struct.pack(">ii", replica_id, 1) + string("t") + struct.pack(">i", count) + one * count


def produce(partitions: int, number: int) -> bytes:
    one = struct.pack(">ii", 0, 7) + b"records"
    head = struct.pack(">hhii", -1, 1, number, 1) + string("t") + struct.pack(">i", partitions)
    return request(ApiKey.PRODUCE, 3, head + one * partitions, number)


async def test_a_long_request_is_read_and_answered_whole() -> None:
    handlers = Handlers()
    async with client_of(handlers) as client:
        client.send(request(ApiKey.METADATA, 1, names(LIMIT)))
        _, body = await client.answer()

    response = MetadataResponse.decode(body, 1)
    assert [one.name for one in response.topics] == [f"name-{number}" for number in range(LIMIT)]
    assert handlers.elements == LIMIT


async def test_too_many_elements_close_the_connection_where_each_would_need_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handlers = Handlers()
    caplog.set_level(logging.WARNING, "request")
    async with client_of(handlers) as client:
        client.send(request(ApiKey.METADATA, 1, names(LIMIT + 1)))
        assert await client.is_closed()

    assert handlers.elements == 0
    [line] = [vars(record) for record in caplog.records]
    announced = f"METADATA v1 announces {LIMIT + 1} elements, more than request.max.elements ({LIMIT})"
    assert announced in line["reason"]
    assert "127.0.0.1" in line["connection"]


async def test_too_many_elements_are_an_invalid_request_where_the_answer_has_room_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    partitions = struct.pack(">i", LIMIT) + struct.pack(">i", 0) * LIMIT
    body = string("g") + struct.pack(">i", 1) + string("t") + partitions
    caplog.set_level(logging.WARNING, "request")
    async with client_of(Handlers()) as client:
        client.send(request(ApiKey.OFFSET_FETCH, 2, body))
        _, answer = await client.answer()
        assert OffsetFetchResponse.decode(answer, 2).error_code == ErrorCode.INVALID_REQUEST
        client.send(request(ApiKey.OFFSET_FETCH, 1, body))  # version 1 has no such place
        assert await client.is_closed()

    reasons = [vars(record)["reason"] for record in caplog.records]
    assert [f"announces {LIMIT + 1} elements" in reason for reason in reasons] == [True, True]


async def test_elements_of_all_lists_count_together() -> None:
    handlers = Handlers()
    topics = [string("t") + struct.pack(">i", 100) + struct.pack(">iq", 0, -1) * 100] * (LIMIT // 100)
    body = struct.pack(">ii", -1, len(topics)) + b"".join(topics)
    async with client_of(handlers) as client:
        client.send(request(ApiKey.LIST_OFFSETS, 1, body))
        assert await client.is_closed()

    assert handlers.elements == 0


@pytest.mark.parametrize(
    ("replica_id", "of_broker", "served"), [(2, True, True), (2, False, False), (-1, True, False)]
)
async def test_only_requests_of_brokers_have_no_limit(replica_id: int, of_broker: bool, served: bool) -> None:
    handlers = Handlers()
    async with client_of(handlers, of_broker=of_broker) as client:
        client.send(request(ApiKey.LIST_OFFSETS, 1, offsets(2 * LIMIT, replica_id)))
        if served:
            await client.answer()
        else:
            assert await client.is_closed()

    assert handlers.elements == (2 * LIMIT if served else 0)


async def test_bytes_that_are_no_request_close_the_connection_from_the_middle_of_a_long_one() -> None:
    handlers = Handlers()
    async with client_of(handlers) as client:
        client.send(request(ApiKey.METADATA, 1, names(LIMIT)[:-10]))
        assert await client.is_closed()

    assert handlers.elements == 0


async def test_work_ends_when_its_connection_does() -> None:
    handlers = Handlers()
    async with client_of(handlers) as client:
        client.send(request(ApiKey.OFFSET_FETCH, 1, string("g") + struct.pack(">i", 0)))
        async with asyncio.timeout(BOUND_S):
            await handlers.begun.wait()
        client.writer.transport.abort()
        async with asyncio.timeout(BOUND_S):
            done = -1
            while done != handlers.elements:
                done = handlers.elements
                for _ in range(100):
                    await asyncio.sleep(0)

    assert 0 < handlers.elements < 1_000_000


async def test_requests_behind_a_long_produce_wait_for_it() -> None:
    handlers = Handlers()
    handlers.go_on.clear()
    async with client_of(handlers) as client:
        client.send(produce(2_000, 1), produce(1, 2), produce(1, 3))
        await asyncio.sleep(0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert handlers.produced == []
        handlers.go_on.set()
        answered = [(await client.answer())[0] for _ in range(3)]

    assert handlers.produced == [1, 2, 3]
    assert answered == [1, 2, 3]


async def test_a_long_produce_waits_for_those_before_it() -> None:
    handlers = Handlers()
    async with client_of(handlers) as client:
        client.send(produce(1, 1), produce(2_000, 2), produce(1, 3))
        answered = [(await client.answer())[0] for _ in range(3)]

    assert handlers.produced == [1, 2, 3]
    assert answered == [1, 2, 3]
