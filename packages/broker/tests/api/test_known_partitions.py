"""The partitions that a session knows, over the network: how they get into its index, and out of it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane, DataServices, batch_of
from ottla.broker.config import BrokerConfig
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.listener import Server
from ottla.broker.network.session import SessionState
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.authorization import RequestAuthorization
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.routes import Route, Routes
from ottla.broker.security.authorizer import AllowAll, Operation, Resource
from ottla.broker.security.principal import Principal
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

BOUND_S = 60
BEFORE_LOGIN: dict[str, Any] = {"initial_state": SessionState.UNAUTHENTICATED}


class Client:
    """Requests over one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *requests: Any) -> None:
        for request in requests:
            frame = encode_request(RequestHeader(request.API_KEY, 0, 1, "me"), request)
            self.writer.write(struct.pack(">i", len(frame)) + frame)

    def send_produce(self, topic: str = "t", acks: int = 1) -> None:
        records = PartitionProduceData(index=0, records=batch_of(b"a"))
        request = ProduceRequest(
            acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=[records])]
        )
        frame = encode_request(RequestHeader(ApiKey.PRODUCE, 9, 1, "me"), request)
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def send_fetch(
        self,
        offset: int = 0,
        max_wait_ms: int = 0,
        *,
        session_id: int = 0,
        session_epoch: int = -1,
        names_topic: bool = True,
    ) -> None:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic="t", partitions=[partition])] if names_topic else [],
        )
        frame = encode_request(RequestHeader(ApiKey.FETCH, 12, 1, "me"), request)
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def answer(self) -> bytes:
        async with asyncio.timeout(BOUND_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return (await self.reader.readexactly(size))[4:]

    async def produce_error(self) -> int:
        response = ProduceResponse.decode((await self.answer())[1:], 9)
        return response.responses[0].partition_responses[0].error_code

    async def is_closed(self) -> bool:
        async with asyncio.timeout(BOUND_S):
            return await self.reader.read(1) == b""


@asynccontextmanager
async def clients(server: Server, count: int = 1, **how: Any) -> AsyncIterator[list[Client]]:
    async with asyncio.timeout(60), server:
        host, port = await server.listen("PLAINTEXT", "127.0.0.1", 0, **how)
        opened = [Client(*await asyncio.open_connection(host, port)) for _ in range(count)]
        try:
            yield opened
        finally:
            for one in opened:
                one.writer.close()


def server_on(
    plane: DataPlane, general: list[str] | None = None, access: RequestAuthorization | None = None
) -> Server:
    """Make a server for Produce and Fetch; `general` gets the topic of each produce on the general path."""
    services = plane.services

    def counted(services: DataServices, request: ProduceRequest, context: RequestContext) -> Any:
        topic = request.topic_data[0].name
        if general is not None:
            general.append(topic)
        return produce.handle(services, request, context)

    routes: list[Route[DataServices]] = [
        Route(
            ApiKey.PRODUCE,
            0,
            9,
            counted,
            borrows_buffer=True,
            appends=True,
            fast_path=lambda services: services.produce_fast_path,
        ),
        Route(
            ApiKey.FETCH,
            0,
            12,
            fetch.handle,
            borrows_buffer=True,
            fast_path=lambda services: services.fetch_fast_path,
        ),
    ]
    return Server(
        Dispatcher(Routes(routes), services, access=access),
        config=BrokerConfig(),
        clock=plane.environment.clock,
        budget=plane.environment.budget,
        metrics=plane.metrics,
    )


@pytest.fixture
def plane(tmp_path: Any) -> Any:
    made = DataPlane(tmp_path)
    yield made
    made.logs.close()


async def produced(client: Client, times: int = 1) -> None:
    for _ in range(times):
        client.send_produce()
        assert await client.produce_error() == 0


async def test_a_produce_before_login_appends_nothing(plane: DataPlane) -> None:
    partition = await plane.lead()
    async with clients(server_on(plane), **BEFORE_LOGIN) as (client,):
        client.send_produce()

        assert await client.is_closed()

    assert partition.log.log_end_offset == 0


async def test_each_session_gets_to_know_its_own_partitions(plane: DataPlane) -> None:
    await plane.lead()
    server = server_on(plane)
    async with clients(server, count=2) as (one, two):
        await produced(one, times=3)
        sessions = [connection.session for connection in server.connections.all()]

        known = sorted(len(session.targets_of(ApiKey.PRODUCE)) for session in sessions)
        assert known == [0, 1]

        await produced(two, times=3)
        targets = [session.targets_of(ApiKey.PRODUCE)[b"t\0\0\0\0"] for session in sessions]
        assert targets[0] is targets[1]
        assert {session.client_id for session in sessions} == {"me"}


async def test_a_session_that_forgot_its_partitions_leaves_the_others_alone(plane: DataPlane) -> None:
    partition = await plane.lead()
    general: list[str] = []
    server = server_on(plane, general)
    async with clients(server, count=2) as (one, two):
        await produced(one, times=2)
        await produced(two, times=2)
        sessions = [connection.session for connection in server.connections.all()]
        assert general == ["t", "t"]  # the first of each session

        sessions[0].forget_partitions()

        assert sessions[0].known is None
        assert len(sessions[1].targets_of(ApiKey.PRODUCE)) == 1
        await produced(one, times=2)
        await produced(two, times=2)
        assert general == ["t", "t", "t"]
        assert [len(session.targets_of(ApiKey.PRODUCE)) for session in sessions] == [1, 1]
    assert partition.log.log_end_offset == 8


class Changing(AllowAll):
    """An authorizer whose answer changes."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked = 0

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        self.asked += 1
        return self.is_open


async def test_a_changed_acl_ends_the_fast_path_of_a_session_that_forgets_its_partitions(
    plane: DataPlane,
) -> None:
    partition = await plane.lead()
    authorizer = Changing()
    server = server_on(plane, access=RequestAuthorization(authorizer=authorizer))
    async with clients(server) as (client,):
        await produced(client, times=3)
        (session,) = [connection.session for connection in server.connections.all()]
        assert authorizer.asked == 1, "the fast path asks for nothing"

        authorizer.is_open = False
        session.forget_partitions()
        client.send_produce()

        assert await client.produce_error() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert authorizer.asked == 2
    assert partition.log.log_end_offset == 3


@pytest.mark.parametrize("is_known", [False, True], ids=["general path", "fast path"])
async def test_a_fetch_that_waits_while_its_permission_is_taken_away_gets_no_records(
    plane: DataPlane, is_known: bool
) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    authorizer = Changing()
    server = server_on(plane, access=RequestAuthorization(authorizer=authorizer))
    async with clients(server) as (client,):
        if is_known:
            client.send_fetch()
            await client.answer()
        client.send_fetch(offset=1, max_wait_ms=BOUND_S * 1000)
        await waiting_on(partition)
        (session,) = [connection.session for connection in server.connections.all()]
        assert bool(session.targets_of(ApiKey.FETCH)) is is_known

        authorizer.is_open = False
        session.forget_partitions()
        partition.append(batch_of(b"secret"), now_ms=1)

        answer = await client.answer()
        assert b"secret" not in answer
        (topic,) = FetchResponse.decode(answer[1:], 12).responses
        assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert authorizer.asked == 2


async def test_a_fetch_session_reports_settled_partitions_whose_permission_is_taken_away(
    plane: DataPlane,
) -> None:
    await plane.lead()
    authorizer = Changing()
    server = server_on(plane, access=RequestAuthorization(authorizer=authorizer))
    async with clients(server) as (client,):
        client.send_fetch(session_epoch=0)
        begun = FetchResponse.decode((await client.answer())[1:], 12)
        client.send_fetch(session_id=begun.session_id, session_epoch=1, names_topic=False)
        settled = FetchResponse.decode((await client.answer())[1:], 12)
        (session,) = [connection.session for connection in server.connections.all()]
        assert (settled.responses, authorizer.asked) == ([], 1)

        authorizer.is_open = False
        session.forget_partitions()
        client.send_fetch(session_id=begun.session_id, session_epoch=2, names_topic=False)

        (topic,) = FetchResponse.decode((await client.answer())[1:], 12).responses
        assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_a_fetch_session_on_another_connection_asks_for_its_own_client(plane: DataPlane) -> None:
    await plane.lead()
    authorizer = Changing()
    server = server_on(plane, access=RequestAuthorization(authorizer=authorizer))
    async with clients(server, count=2) as (client, thief):
        client.send_fetch(session_epoch=0)
        begun = FetchResponse.decode((await client.answer())[1:], 12)
        authorizer.is_open = False

        thief.send_fetch(session_id=begun.session_id, session_epoch=1, names_topic=False)

        (topic,) = FetchResponse.decode((await thief.answer())[1:], 12).responses
        assert topic.partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def waiting_on(partition: HostedPartition) -> None:
    while not partition.watchers:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def test_a_fetch_that_waits_does_not_bring_a_forgotten_partition_back(plane: DataPlane) -> None:
    partition = await plane.lead()
    server = server_on(plane)
    async with clients(server) as (client,):
        client.send_fetch(max_wait_ms=BOUND_S * 1000)
        while not partition.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (session,) = [connection.session for connection in server.connections.all()]

        session.forget_partitions()
        partition.append(batch_of(b"a"), now_ms=1)
        await client.answer()

        assert session.known is None
        client.send_fetch()
        await client.answer()
        assert len(session.targets_of(ApiKey.FETCH)) == 1


@asynccontextmanager
async def waiting_natively(plane: DataPlane) -> AsyncIterator[tuple[Client, Server, HostedPartition]]:
    """A client whose second fetch waits at the end of the log, on the fast path."""
    partition = await plane.lead()
    partition.append(batch_of(b"a"), now_ms=1)
    server = server_on(plane)
    async with clients(server) as (client,):
        client.send_fetch()
        await client.answer()
        tasks = asyncio.all_tasks()
        client.send_fetch(offset=1, max_wait_ms=BOUND_S * 1000)
        while not partition.watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert asyncio.all_tasks() == tasks, "it waits without a task"
        yield client, server, partition


def records_of(answer: bytes) -> bytes:
    (topic,) = FetchResponse.decode(answer[1:], 12).responses
    return bytes(topic.partitions[0].records or b"")


async def test_a_fetch_that_waits_on_the_fast_path_is_answered_before_what_stands_behind_it(
    plane: DataPlane,
) -> None:
    async with waiting_natively(plane) as (client, server, partition):
        client.send_fetch()
        client.send_produce()
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert partition.log.log_end_offset == 1, "a Produce behind it waits"

        partition.append(batch_of(b"b" * 100), now_ms=1)

        assert b"b" * 100 in records_of(await client.answer())
        assert b"b" * 100 in records_of(await client.answer())
        assert await client.produce_error() == 0
        metrics = server.request_metrics.of(ApiKey.FETCH)
        assert metrics.remote_time_ms.count == 2  # the first of the session, and the one that waited


async def test_a_client_that_disconnects_ends_its_wait_on_the_fast_path(plane: DataPlane) -> None:
    async with waiting_natively(plane) as (client, server, partition):
        client.writer.close()
        while partition.watchers or len(server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        assert len(plane.services.delayed_fetches) == 0


async def test_a_fetch_on_the_fast_path_whose_partition_was_lost_gets_the_error(plane: DataPlane) -> None:
    async with waiting_natively(plane) as (client, _, _):
        await plane.lead(leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))

        (topic,) = FetchResponse.decode((await client.answer())[1:], 12).responses

        assert topic.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_stopping_broker_does_not_wait_for_a_fetch_on_the_fast_path(plane: DataPlane) -> None:
    async with waiting_natively(plane) as (client, server, _):
        assert not any(one.busy for one in server.connections.all())

        await server.__aexit__(None, None, None)

        assert await client.is_closed()
        assert len(plane.services.delayed_fetches) == 0


async def test_a_change_of_a_topic_drops_its_partitions_from_every_session(plane: DataPlane) -> None:
    partition = await plane.lead()
    server = server_on(plane)
    async with clients(server, count=2) as (one, two):
        await produced(one, times=2)
        await produced(two, times=2)
        sessions = [connection.session for connection in server.connections.all()]
        old = sessions[0].targets_of(ApiKey.PRODUCE)[b"t\0\0\0\0"]

        plane.services.produce_fast_path.known.retire_topic("t")

        await produced(one, times=2)
        await produced(two, times=2)
        new = [session.targets_of(ApiKey.PRODUCE)[b"t\0\0\0\0"] for session in sessions]
        assert old.retired
        assert new[0] is new[1]
        assert new[0] is not old
    assert partition.log.log_end_offset == 8
    meters = plane.services.topic_metrics.of("t")
    plane.services.produce_fast_path.flush()
    assert meters.messages_in.count == 8


async def test_a_deleted_partition_is_dropped_from_every_session(plane: DataPlane) -> None:
    partition = await plane.lead()
    server = server_on(plane)
    async with clients(server) as (client,):
        await produced(client, times=2)
        (session,) = [connection.session for connection in server.connections.all()]

        await plane.replicas.stop([(partition.topic_partition, -1, True)])
        client.send_produce()

        assert await client.produce_error() == 3
        assert session.targets_of(ApiKey.PRODUCE) == {}
