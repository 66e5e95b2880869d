"""Sessions: the APIs allowed before login, and the index of known partitions."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.api.testing import batch_of
from ottla.broker.network import connection as connection_module
from ottla.broker.network import session as session_module
from ottla.broker.network.listener import Server
from ottla.broker.network.session import Session, SessionState
from ottla.broker.network.testing import server_of
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.fast_path import FastPath
from ottla.broker.requests.routes import Route, Routes
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.broker.security.sasl.login import ListenerLogins, LoginCounts, LoginState
from ottla.broker.security.sasl.login import Login as SaslLogin
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

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


class NoFastPath(FastPath):
    """The name of an index."""

    def __init__(self, api_key: int) -> None:
        self.api_key = api_key


PRODUCES, FETCHES = NoFastPath(ApiKey.PRODUCE), NoFastPath(ApiKey.FETCH)


def a_session(state: SessionState = SessionState.AUTHENTICATED) -> Session:
    return Session(listener_name="PLAINTEXT", client_host="127.0.0.1", connection_id="1", state=state)


def test_a_client_of_a_plaintext_listener_is_anonymous() -> None:
    session = a_session()

    assert session.is_authenticated
    assert session.principal is ANONYMOUS
    assert str(session.principal) == "User:ANONYMOUS"


def test_a_session_that_used_no_fast_path_has_no_index() -> None:
    session = a_session()

    assert session.known is None


def test_the_index_is_bounded_and_the_partition_admitted_first_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MAX_KNOWN_PARTITIONS", 3)
    session = a_session()

    for number in (0, 1, 2, 0, 3):
        known = Known("t", number)
        session.admit(PRODUCES, known.key, known, session.index_epoch)
        session.admit(FETCHES, known.key, known, session.index_epoch)

    for api_key in (ApiKey.PRODUCE, ApiKey.FETCH):
        assert list(session.targets_of(api_key)) == [Known("t", number).key for number in (1, 2, 3)]


def test_a_session_forgets_all_partitions_or_those_of_one_topic() -> None:
    session = a_session()
    for topic in ("a", "ab", "b"):
        produced, fetched = Known(topic), Known(topic, 1)
        session.admit(PRODUCES, produced.key, produced, session.index_epoch)
        session.admit(FETCHES, fetched.key, fetched, session.index_epoch)
        session.admit(FETCHES, b"\0" + topic.encode(), fetched, session.index_epoch)

    session.forget_partitions("a")

    assert list(session.targets_of(ApiKey.PRODUCE)) == [Known("ab").key, Known("b").key]
    kept = [Known("ab", 1).key, b"\0ab", Known("b", 1).key, b"\0b"]
    assert list(session.targets_of(ApiKey.FETCH)) == kept
    session.forget_partitions()
    assert session.known is None


def test_a_login_drops_the_partitions_of_the_earlier_principal() -> None:
    session = a_session()
    session.admit(PRODUCES, Known("a").key, Known("a"), session.index_epoch)

    session.authenticated(ALICE)

    assert session.principal == ALICE
    assert session.known is None


def test_a_request_that_was_read_before_its_session_forgot_admits_nothing() -> None:
    session = a_session()
    read_at = session.index_epoch

    session.forget_partitions()
    session.admit(PRODUCES, Known("a").key, Known("a"), read_at)
    session.admit(FETCHES, Known("a").key, Known("a"), read_at)

    assert session.known is None


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
                Route(ApiKey.API_VERSIONS, 0, 3, self.api_versions, before_login=True),
                Route(ApiKey.SASL_HANDSHAKE, 0, 1, self.handshake, before_login=True),
                Route(ApiKey.SASL_AUTHENTICATE, 0, 2, self.authenticate, before_login=True),
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
    assert "API key 12 before authentication" in vars(caplog.records[-1])["reason"]


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


def never_logged_in() -> SaslLogin:
    rules = ListenerLogins(
        mechanisms={},
        max_reauth_ms={},
        counts=LoginCounts(),
        warnings=LimitedWarnings(logging.getLogger(), lambda: 0.0),
    )
    return SaslLogin(rules, lambda: 0.0, lambda: 0.0)


async def test_a_client_that_does_not_log_in_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "LOGIN_WITHIN_S", 0.05)
    server = server_of(Login().routes)
    async with clients(server, begin_login=never_logged_in) as (client,):
        client.send(ApiVersionsRequest())
        await client.answer()

        assert await client.is_closed()

    assert "no login within 0.05 s" in vars(caplog.records[-1])["reason"]


async def test_a_session_whose_login_has_ended_accepts_a_login_alone() -> None:
    login = Login()
    made: list[SaslLogin] = []

    def begin_login() -> SaslLogin:
        made.append(never_logged_in())
        return made[-1]

    server = server_of(login.routes)
    async with clients(server, begin_login=begin_login) as (client,):
        client.send(SaslHandshakeRequest(mechanism="x"))
        await client.answer()
        made[0].state = LoginState.AUTHENTICATED
        (connection,) = server.connections.all()
        connection.session.authenticated(ALICE, ends_after_ms=0)
        while connection.session.is_authenticated:  # noqa: ASYNC110 - until the timer of 0 ms
            await asyncio.sleep(0)
        client.send(HeartbeatRequest(group_id="g", member_id="m"))

        assert await client.is_closed()

    assert login.seen == []
    assert made[0].rules.counts.killed == 1
