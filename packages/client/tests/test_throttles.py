"""Requests of a connection that a broker has throttled (KIP-219)."""

from __future__ import annotations

import asyncio

import pytest

from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.client.errors import ConnectionClosed
from ottla.client.testing import ScriptedBroker
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def throttling(broker: ScriptedBroker, throttle_time_ms: int) -> Connection:
    """Answer Metadata for its topic; a request for the topic `much` is throttled. Return a connection."""

    def answer(request: MetadataRequest) -> MetadataResponse:
        (topic,) = request.topics or []
        response = broker.metadata(topic.name or "")
        response.throttle_time_ms = throttle_time_ms if topic.name == "much" else 0
        return response

    broker.on(MetadataRequest, answer)
    return Connection(Address(broker.host, broker.port))


async def ask(connection: Connection, topic: str) -> MetadataResponse:
    return await connection.send(asking_for(topic), MetadataResponse)


def asking_for(topic: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=topic)])


class Unheard:
    """The reply to a request that must not be sent."""

    def done(self) -> bool:
        return False

    def set_result(self, frame: memoryview, /) -> None:
        raise AssertionError(bytes(frame))

    def set_exception(self, error: BaseException, /) -> None:
        raise error


def encode_nothing(_: int) -> list[bytes]:
    raise AssertionError("the request was encoded")


async def test_no_request_is_sent_before_a_throttle_is_over_and_then_all_go_in_their_order() -> None:
    now_s = asyncio.get_running_loop().time
    async with ScriptedBroker() as broker, throttling(broker, 2_000) as connection, asyncio.timeout(30):
        await ask(connection, "much")
        throttled_at_s = now_s()

        asked = [asyncio.ensure_future(ask(connection, f"t{number}")) for number in range(20)]
        assert not connection.send_now(ApiKey.METADATA, encode_nothing, Unheard())
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert now_s() - throttled_at_s >= 1.99
        await asyncio.gather(*asked)

    names = [topic.name for request in broker.seen(MetadataRequest) for topic in request.topics or []]
    assert names == ["much", *(f"t{number}" for number in range(20))]


async def test_requests_that_wait_for_a_throttle_fail_when_the_connection_ends() -> None:
    async with ScriptedBroker() as broker, throttling(broker, 3_600_000) as connection, asyncio.timeout(30):
        await ask(connection, "much")
        asked = [asyncio.ensure_future(ask(connection, "t")) for _ in range(3)]
        await asyncio.sleep(0)

        broker.drop_connections()

        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, ConnectionClosed)
    assert len(broker.seen(MetadataRequest)) == 1


@pytest.mark.parametrize("version", [3, 5])
async def test_the_throttle_of_an_old_version_is_over_with_its_response(version: int) -> None:
    async with (
        ScriptedBroker({ApiKey.METADATA: (0, version)}) as broker,
        throttling(broker, 3_600_000) as connection,
        asyncio.timeout(30),
    ):
        assert (await ask(connection, "much")).throttle_time_ms == 3_600_000

        await ask(connection, "t")
