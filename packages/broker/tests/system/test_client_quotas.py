"""Quotas of a whole broker: rates that are held, throttle times on every path, changes, and their end."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.admin import Admin
from ottla.admin.configs import CLIENT_ID, USER
from ottla.broker.api.testing import batch_of
from ottla.broker.testing import BrokerThread
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.schema import Message

M = TypeVar("M", bound=Message)
BOUND_S = 60.0
RECORDS = batch_of(b"x" * 10_000)


OPENED: list[Client] = []


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Play a scene, and close the connections of its clients."""

    async def closing() -> None:
        try:
            await scene()
        finally:
            for client in OPENED:
                client.writer.close()
            OPENED.clear()

    asyncio.run(closing())


class Client:
    """Requests with a client id, one after the other, over one connection."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._number = 0

    async def connect(self, broker: BrokerThread) -> Client:
        self.reader, self.writer = await asyncio.open_connection(broker.host, broker.port)
        OPENED.append(self)
        return self

    def send(self, key: ApiKey, version: int, request: Message) -> None:
        self._number += 1
        frame = encode_request(RequestHeader(key, version, self._number, self.client_id), request)
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, key: ApiKey, version: int, cls: type[M]) -> M:
        async with asyncio.timeout(BOUND_S):
            size = int.from_bytes(await self.reader.readexactly(4))
            body = await self.reader.readexactly(size)
        return cls.decode(memoryview(body)[4 + (version >= FLEXIBLE[key]) :], version)

    async def ask(self, key: ApiKey, version: int, request: Message, cls: type[M]) -> M:
        self.send(key, version, request)
        return await self.receive(key, version, cls)

    async def produce(self, acks: int = 1, version: int = 9) -> int:
        """Produce one batch; return the throttle time."""
        response = await self.ask(ApiKey.PRODUCE, version, produce_of(acks), ProduceResponse)
        (topic,) = response.responses
        assert topic.partition_responses[0].error_code == 0
        return response.throttle_time_ms

    async def fetch(self, version: int = 12, offset: int = 0, max_wait_ms: int = 0) -> tuple[int, int]:
        """Fetch from the topic; return the bytes of records and the throttle time."""
        response = await self.ask(ApiKey.FETCH, version, fetch_of(offset, max_wait_ms), FetchResponse)
        assert response.error_code == 0
        size = sum(len(found.records or b"") for topic in response.responses for found in topic.partitions)
        return size, response.throttle_time_ms

    async def heartbeat(self) -> int:
        response = await self.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="none"), HeartbeatResponse)
        return response.throttle_time_ms


FLEXIBLE = {
    ApiKey.PRODUCE: 9, ApiKey.FETCH: 12, ApiKey.HEARTBEAT: 4,
    ApiKey.CREATE_TOPICS: 5, ApiKey.DELETE_TOPICS: 4,
}  # fmt: skip


def produce_of(acks: int) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=RECORDS)
    return ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )


def fetch_of(offset: int, max_wait_ms: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    # Two windows, so that the worth of one second is free, and no test waits for ten.
    with BrokerThread(tmp_path / "data", {"num.partitions": "1", "quota.window.num": "2"}) as started:
        yield started


async def set_quota(broker: BrokerThread, entity: dict[str, str | None], **quotas: float | None) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.quotas.alter(entity, quotas)


async def make_topic(broker: BrokerThread, records: int = 0) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        await admin.topics.create("t", partitions=1, replication_factor=1)
    filler = await Client("filler").connect(broker)
    for _ in range(records):
        await filler.produce()


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 8, 9, 11])
def test_a_produce_above_the_quota_is_answered_with_the_throttle_time_and_the_connection_muted(
    broker: BrokerThread, acks: int, version: int
) -> None:
    async def run() -> None:
        await make_topic(broker)
        await set_quota(broker, {CLIENT_ID: "app"}, producer_byte_rate=100_000)
        client, other = await Client("app").connect(broker), await Client("other").connect(broker)

        throttled = [await client.produce(acks, version) for _ in range(9)]
        assert throttled == [0] * 9, "a second's worth, on the general and the fast path"
        while not (throttle_ms := await client.produce(acks, version)):
            pass
        began_s = time.monotonic()
        assert await other.produce(acks, version) == 0
        await client.produce(acks, version)
        assert time.monotonic() - began_s >= throttle_ms / 1000 - 0.1

    play(run)


@pytest.mark.parametrize("version", [4, 11, 12])
def test_a_fetch_above_the_quota_is_answered_with_nothing_and_later_with_everything(
    broker: BrokerThread, version: int
) -> None:
    async def run() -> None:
        await make_topic(broker, records=1)
        await set_quota(broker, {CLIENT_ID: "app"}, consumer_byte_rate=200_000)
        client = await Client("app").connect(broker)
        sizes = [await client.fetch(version) for _ in range(19)]
        assert all(size == len(RECORDS) and not throttle_ms for size, throttle_ms in sizes)

        while not (answer := await client.fetch(version))[1]:
            pass
        began_s = time.monotonic()
        assert answer[0] == 0
        size, _ = await client.fetch(version)
        assert time.monotonic() - began_s >= answer[1] / 1000 - 0.1
        assert size in (0, len(RECORDS))

    play(run)


def test_a_fetch_that_waited_is_throttled_when_its_records_come(broker: BrokerThread) -> None:
    async def run() -> None:
        await make_topic(broker, records=1)
        client, producer = await Client("app").connect(broker), await Client("p").connect(broker)
        assert await client.fetch() == (len(RECORDS), 0)
        client.send(ApiKey.FETCH, 12, fetch_of(1, 30_000))
        await set_quota(broker, {CLIENT_ID: "app"}, consumer_byte_rate=12_000)
        other = await Client("app").connect(broker)
        assert (await other.fetch())[0] == len(RECORDS), "they share the quota"

        await producer.produce()
        response = await client.receive(ApiKey.FETCH, 12, FetchResponse)

        assert response.throttle_time_ms > 0
        assert not response.responses

    play(run)


def test_a_batch_beyond_the_quota_is_fetched_and_the_next_fetch_waits(broker: BrokerThread) -> None:
    async def run() -> None:
        await make_topic(broker, records=1)
        await set_quota(broker, {CLIENT_ID: "app"}, consumer_byte_rate=5_000)
        client = await Client("app").connect(broker)

        assert await client.fetch() == (len(RECORDS), 0), "Kafka throttles it for ever"
        size, throttle_ms = await client.fetch()
        assert size == 0
        assert throttle_ms > 1_000
        assert (await client.fetch())[0] in (0, len(RECORDS))

    play(run)


def test_the_user_of_a_plaintext_listener_has_quotas_and_a_change_frees_its_sessions(
    broker: BrokerThread,
) -> None:
    async def run() -> None:
        await make_topic(broker)
        client = await Client("app").connect(broker)
        assert await client.produce() == await client.produce() == 0
        await set_quota(broker, {USER: None}, producer_byte_rate=500)

        assert await client.produce() > 0

        fresh = await Client("app").connect(broker)
        await set_quota(broker, {USER: None}, producer_byte_rate=None)
        assert [await fresh.produce() for _ in range(5)] == [0] * 5

    play(run)


def test_the_time_of_requests_is_limited(broker: BrokerThread) -> None:
    async def run() -> None:
        await set_quota(broker, {CLIENT_ID: "busy"}, request_percentage=0.01)
        client, other = await Client("busy").connect(broker), await Client("other").connect(broker)

        async with asyncio.timeout(BOUND_S):
            while not (throttle_ms := await client.heartbeat()):
                pass
        assert throttle_ms <= 1000
        assert await other.heartbeat() == 0

    play(run)


@pytest.mark.parametrize("version", [4, 12])
def test_a_fetch_waits_for_records_also_when_the_time_of_its_client_is_limited(
    broker: BrokerThread, version: int
) -> None:
    async def run() -> None:
        await make_topic(broker, records=1)
        await set_quota(broker, {CLIENT_ID: "app"}, request_percentage=50)
        client, producer = await Client("app").connect(broker), await Client("p").connect(broker)
        client.send(ApiKey.FETCH, version, fetch_of(1, 30_000))

        await producer.produce()
        response = await client.receive(ApiKey.FETCH, version, FetchResponse)

        assert response.error_code == 0
        assert [len(found.records or b"") for found in response.responses[0].partitions] == [len(RECORDS)]

    play(run)


def test_the_time_of_brokers_requests_is_measured_while_the_time_of_a_client_is_limited(
    broker: BrokerThread,
) -> None:
    async def run() -> None:
        await make_topic(broker, records=1)
        follower = await Client("follower").connect(broker)
        assert broker.broker is not None
        quotas = broker.broker.services.client_quotas
        fetch = fetch_of(0, 0)
        fetch.replica_id = 1

        await follower.ask(ApiKey.FETCH, 12, fetch, FetchResponse)
        assert quotas.exempt.last_ms == 0
        await set_quota(broker, {CLIENT_ID: "any"}, request_percentage=50)
        response = await follower.ask(ApiKey.FETCH, 12, fetch, FetchResponse)

        assert (response.error_code, response.throttle_time_ms) == (0, 0)
        assert quotas.exempt.last_ms > 0

    play(run)


async def create(client: Client, version: int, *names: str) -> tuple[list[int], int]:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=8, replication_factor=1) for name in names],
        timeout_ms=30_000,
    )
    response = await client.ask(ApiKey.CREATE_TOPICS, version, request, CreateTopicsResponse)
    return [topic.error_code for topic in response.topics], response.throttle_time_ms


def test_controller_mutations_are_refused_to_newer_clients_and_throttled_for_older_ones(
    broker: BrokerThread,
) -> None:
    async def run() -> None:
        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await set_quota(broker, {CLIENT_ID: None}, controller_mutation_rate=1)
        new, old = await Client("new").connect(broker), await Client("old").connect(broker)

        codes, throttle_ms = await create(new, 7, "a", "b", "c")
        assert codes == [0, 0, refused], "11 tokens: the second topic takes the last"
        assert 0 < throttle_ms <= 5_000

        codes, throttle_ms = await create(old, 4, "d", "e")
        assert codes == [0, 0]
        assert 0 < throttle_ms <= 5_000

        third = await Client("third").connect(broker)
        request = DeleteTopicsRequest(topic_names=["a", "b", "d"], timeout_ms=30_000)
        response = await third.ask(ApiKey.DELETE_TOPICS, 5, request, DeleteTopicsResponse)
        assert [topic.error_code for topic in response.responses] == [0, 0, refused]
        assert response.throttle_time_ms > 0

    play(run)


def test_the_rate_stays_below_the_quota(broker: BrokerThread) -> None:
    """Two seconds' window, so that the test is short."""

    async def run() -> None:
        broker.stop()
        short = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
        with BrokerThread(broker.data_dir, short) as restarted:
            await make_topic(restarted)
            await set_quota(restarted, {CLIENT_ID: "app"}, producer_byte_rate=200_000)
            client = await Client("app").connect(restarted)
            for _ in range(30):  # the first window
                await client.produce()
            began_s, size = time.monotonic(), 0
            while time.monotonic() - began_s < 5:
                await client.produce()
                size += len(RECORDS)
            rate = size / (time.monotonic() - began_s)
            assert 20_000 < rate < 210_000, "a machine may be slow, but the quota is not exceeded"

    play(run)


def test_a_muted_client_that_leaves_is_seen_and_closed(broker: BrokerThread) -> None:
    async def run() -> None:
        await make_topic(broker)
        await set_quota(broker, {CLIENT_ID: "app"}, producer_byte_rate=1)
        client = await Client("app").connect(broker)
        while not await client.produce():
            pass
        assert broker.broker is not None
        server = broker.broker._server

        client.writer.close()

        async with asyncio.timeout(BOUND_S):
            while "app" in {found.session.client_id for found in server.connections.all()}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the broker is on another thread

    play(run)
