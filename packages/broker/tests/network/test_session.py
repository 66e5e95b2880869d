"""Sessions: the APIs allowed before login, and the index of known partitions."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane, DataServices, batch_of
from ottla.broker.config import BrokerConfig
from ottla.broker.network import session as session_module
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.listener import Server
from ottla.broker.network.session import Session, SessionState
from ottla.broker.network.testing import server_of
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.routes import Route, Routes
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

BOUND_S = 60
ALICE = Principal("User", "alice")


# ---- a session by itself


@dataclass
class Known:
    """A partition as a fast path knows it."""

    topic: str
    number: int = 0

    @property
    def key(self) -> bytes:
        return self.topic.encode() + self.number.to_bytes(4)


def a_session(state: SessionState = SessionState.AUTHENTICATED) -> Session:
    return Session(listener_name="PLAINTEXT", client_host="127.0.0.1", connection_id="1", state=state)


def test_a_client_of_a_plaintext_listener_is_anonymous() -> None:
    session = a_session()

    assert session.is_authenticated
    assert session.principal is ANONYMOUS
    assert str(session.principal) == "User:ANONYMOUS"


def test_a_session_that_used_no_fast_path_has_no_index() -> None:
    session = a_session()

    assert session.produce_targets is None
    assert session.fetch_targets is None


def test_the_index_is_bounded_and_the_partition_admitted_first_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MAX_KNOWN_PARTITIONS", 3)
    session = a_session()

    for number in (0, 1, 2, 0, 3):
        session.admit_produces(Known("t", number), session.index_epoch)
        known = Known("t", number)
        session.admit_fetches(known, session.index_epoch, known.key)

    for targets in (session.produce_targets, session.fetch_targets):
        assert list(targets or ()) == [Known("t", number).key for number in (1, 2, 3)]


def test_a_session_forgets_all_partitions_or_those_of_one_topic() -> None:
    session = a_session()
    for topic in ("a", "ab", "b"):
        session.admit_produces(Known(topic), session.index_epoch)
        known = Known(topic, 1)
        session.admit_fetches(known, session.index_epoch, known.key)
        session.admit_fetches(known, session.index_epoch, b"\0" + topic.encode())

    session.forget_partitions("a")

    assert list(session.produce_targets or ()) == [Known("ab").key, Known("b").key]
    kept = [Known("ab", 1).key, b"\0ab", Known("b", 1).key, b"\0b"]
    assert list(session.fetch_targets or ()) == kept
    session.forget_partitions()
    assert session.produce_targets is None
    assert session.fetch_targets is None


def test_a_login_drops_the_partitions_of_the_earlier_principal() -> None:
    session = a_session()
    session.admit_produces(Known("a"), session.index_epoch)

    session.authenticated(ALICE)

    assert session.principal == ALICE
    assert session.produce_targets is None


def test_a_request_that_was_read_before_its_session_forgot_admits_nothing() -> None:
    session = a_session()
    read_at = session.index_epoch

    session.forget_partitions()
    session.admit_produces(Known("a"), read_at)
    session.admit_fetches(Known("a"), read_at, Known("a").key)

    assert session.produce_targets is None
    assert session.fetch_targets is None


# ---- over the network


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

    def send_fetch(self, offset: int = 0, max_wait_ms: int = 0) -> None:
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic="t", partitions=[partition])],
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


class Login:
    """Handlers of the APIs that may be called before login; the password is "right"."""

    def __init__(self) -> None:
        self.checked = asyncio.Event()
        self.seen: list[str] = []

    async def api_versions(
        self, services: None, request: ApiVersionsRequest, context: RequestContext
    ) -> ApiVersionsResponse:
        return ApiVersionsResponse()

    async def handshake(
        self, services: None, request: SaslHandshakeRequest, context: RequestContext
    ) -> SaslHandshakeResponse:
        return SaslHandshakeResponse()

    async def authenticate(
        self, services: None, request: SaslAuthenticateRequest, context: RequestContext
    ) -> SaslAuthenticateResponse:
        await self.checked.wait()
        if request.auth_bytes != b"right":
            return SaslAuthenticateResponse(error_code=58)
        context.session.authenticated(ALICE)
        return SaslAuthenticateResponse()

    async def heartbeat(
        self, services: None, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse:
        self.seen.append(f"{context.principal} {context.session.listener_name}")
        return HeartbeatResponse()

    @property
    def routes(self) -> Routes[None]:
        return Routes(
            [
                Route(ApiKey.API_VERSIONS, 0, 3, self.api_versions),
                Route(ApiKey.SASL_HANDSHAKE, 0, 1, self.handshake),
                Route(ApiKey.SASL_AUTHENTICATE, 0, 2, self.authenticate),
                Route(ApiKey.HEARTBEAT, 0, 0, self.heartbeat),
            ]
        )


BEFORE_LOGIN: dict[str, Any] = {"initial_state": SessionState.UNAUTHENTICATED}


async def test_before_login_any_other_api_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    login = Login()
    async with clients(server_of(login.routes), **BEFORE_LOGIN) as (client,):
        client.send(HeartbeatRequest(group_id="g", member_id="m"))

        assert await client.is_closed()

    assert login.seen == []
    assert "API key 12 before authentication" in caplog.text


async def test_before_login_a_client_may_negotiate_and_authenticate() -> None:
    login = Login()
    login.checked.set()
    async with clients(server_of(login.routes), **BEFORE_LOGIN) as (client,):
        client.send(
            ApiVersionsRequest(),
            SaslHandshakeRequest(mechanism="PLAIN"),
            SaslAuthenticateRequest(auth_bytes=b"right"),
            HeartbeatRequest(group_id="g", member_id="m"),
        )

        for _ in range(4):
            await client.answer()

    assert login.seen == ["User:alice PLAINTEXT"]


async def test_a_request_behind_a_login_waits_for_its_outcome() -> None:
    login = Login()
    server = server_of(login.routes)
    async with clients(server, **BEFORE_LOGIN) as (client,):
        client.send(
            SaslAuthenticateRequest(auth_bytes=b"wrong"), HeartbeatRequest(group_id="g", member_id="m")
        )
        while not any(one.busy for one in server.connections.all()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        login.checked.set()

        assert (await client.answer())[:2] == struct.pack(">h", 58)
        assert await client.is_closed()

    assert login.seen == []


def server_on(plane: DataPlane, general: list[str] | None = None) -> Server:
    """Make a server for Produce and Fetch; `general` gets the topic of each produce on the general path."""
    services = plane.services

    def counted(services: DataServices, request: ProduceRequest, context: RequestContext) -> Any:
        if general is not None:
            general.append(request.topic_data[0].name)
        return produce.handle(services, request, context)

    routes: list[Route[DataServices]] = [
        Route(ApiKey.PRODUCE, 0, 9, counted, borrows_buffer=True),
        Route(ApiKey.FETCH, 0, 12, fetch.handle, borrows_buffer=True),
    ]
    return Server(
        Dispatcher(Routes(routes), services),
        config=BrokerConfig(),
        clock=plane.environment.clock,
        budget=plane.environment.budget,
        metrics=plane.metrics,
        produce_fast_path=services.produce_fast_path,
        fetch_fast_path=services.fetch_fast_path,
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

        known = sorted(len(session.produce_targets or ()) for session in sessions)
        assert known == [0, 1]

        await produced(two, times=3)
        targets = [(session.produce_targets or {})[b"t\0\0\0\0"] for session in sessions]
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

        assert sessions[0].produce_targets is None
        assert len(sessions[1].produce_targets or ()) == 1
        await produced(one, times=2)
        await produced(two, times=2)
        assert general == ["t", "t", "t"]
        assert [len(session.produce_targets or ()) for session in sessions] == [1, 1]
    assert partition.log.log_end_offset == 8


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

        assert session.fetch_targets is None
        client.send_fetch()
        await client.answer()
        assert len(session.fetch_targets or ()) == 1


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
        old = (sessions[0].produce_targets or {})[b"t\0\0\0\0"]

        plane.services.produce_fast_path.known.retire_topic("t")

        await produced(one, times=2)
        await produced(two, times=2)
        new = [(session.produce_targets or {})[b"t\0\0\0\0"] for session in sessions]
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
        assert session.produce_targets == {}
