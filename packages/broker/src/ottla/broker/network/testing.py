"""For tests: the network of a broker that hosts no partitions, and a client that writes frames by hand."""

from __future__ import annotations

import asyncio
import functools
import inspect
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from ottla.broker.config import BrokerConfig
from ottla.broker.metrics import Metrics
from ottla.broker.network.dispatcher import Dispatcher
from ottla.broker.network.listener import Server
from ottla.broker.network.session import Session
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.requests.routes import Route, Routes, never
from ottla.broker.runtime.environment import SystemClock
from ottla.broker.runtime.loop_budget import LoopBudget
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, GroupIdNotFound, KafkaError
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

BOUND_S = 10


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's own loop and on uvloop."""
    import pytest
    import uvloop

    @functools.wraps(test)
    def run(loop: str, **arguments: Any) -> None:
        factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test(**arguments))

    parameters = [
        inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY),
        *inspect.signature(test).parameters.values(),
    ]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        sorted(
            (given.replace(kind=inspect.Parameter.KEYWORD_ONLY) for given in parameters),
            key=lambda given: given.name,
        )
    )
    del run.__wrapped__
    both: Callable[..., None] = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])(run)
    return both


def server_of(
    routes: Routes[None],
    config: BrokerConfig | None = None,
    is_broker: Callable[[Session], bool | None] = lambda _: False,
    dispatcher: Dispatcher[None] | None = None,
    budget: LoopBudget | None = None,
) -> Server:
    """Make a server for handlers that use no part of a broker."""
    clock = SystemClock()
    return Server(
        dispatcher or Dispatcher(routes, None),
        config=config or BrokerConfig(),
        clock=clock,
        budget=budget or LoopBudget(clock.monotonic_ms),
        metrics=Metrics(),
        is_broker=is_broker,
    )


def unsupported(routes: Iterable[Route[Any]]) -> ApiVersionsResponse:
    """Respond to a version of ApiVersions that is not served, with the ranges of the routes."""
    ranges = [
        ApiVersion(api_key=int(route.api_key), min_version=route.min_version, max_version=route.max_version)
        for route in routes
    ]
    return ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=ranges)


class Impossible(KafkaError):
    code = 70_000  # type: ignore[assignment]  # no answer can carry it


class Answering:
    """Handlers that behave as the group's name says; the generation comes back as error code."""

    def __init__(self, heartbeats_from: Callable[[Any], bool] = never) -> None:
        self._heartbeats_from = heartbeats_from
        self.released = asyncio.Event()
        self.started: list[int] = []
        self.cancelled: list[int] = []

    async def heartbeat(
        self, services: None, request: HeartbeatRequest, context: RequestContext
    ) -> HeartbeatResponse | None:
        if request.group_id != "probe":
            self.started.append(request.generation_id)
        match request.group_id:
            case "wait":
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    self.cancelled.append(request.generation_id)
                    raise
            case "fail":
                raise RuntimeError("a handler that is broken")
            case "kafka":
                raise GroupIdNotFound
            case "impossible":
                raise Impossible
            case "close":
                raise CloseConnection
            case "silent":
                return None
        return HeartbeatResponse(error_code=request.generation_id)

    def leave(
        self, services: None, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        number = int(request.member_id)
        self.started.append(number)
        if request.group_id == "wait":
            return self._later(number)
        return LeaveGroupResponse(error_code=number)

    async def _later(self, number: int) -> LeaveGroupResponse:
        await self.released.wait()
        return LeaveGroupResponse(error_code=number)

    def produce(
        self, services: None, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | Awaitable[ProduceResponse]:
        self.started.append(request.timeout_ms)
        if request.transactional_id == "wait":
            return self._produced_later()
        return ProduceResponse()

    async def _produced_later(self) -> ProduceResponse:
        await self.released.wait()
        return ProduceResponse()

    async def sync(
        self, services: None, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse:
        self.started.append(request.generation_id)
        await self.released.wait()
        return SyncGroupResponse()

    @property
    def routes(self) -> Routes[None]:
        return Routes(
            [
                Route(
                    ApiKey.HEARTBEAT,
                    0,
                    0,
                    self.heartbeat,
                    stops_with_connection=True,
                    of_brokers=self._heartbeats_from,
                ),
                Route(ApiKey.LEAVE_GROUP, 0, 0, self.leave, borrows_buffer=True),
                Route(ApiKey.PRODUCE, 3, 3, self.produce, borrows_buffer=True, appends=True),
                Route(ApiKey.SYNC_GROUP, 0, 0, self.sync, waits_for_clients=True),
                Route(ApiKey.API_VERSIONS, 0, 3, self.heartbeat, unsupported=unsupported),
            ]
        )


class Client:
    """Hand-made frames over one socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    async def answer(self) -> tuple[int, bytes]:
        async with asyncio.timeout(BOUND_S):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        return struct.unpack(">i", frame[:4])[0], frame[4:]

    async def answers(self, count: int) -> list[tuple[int, int]]:
        """(correlation id, error code) of simple answers."""
        return [
            (correlation_id, struct.unpack(">h", body)[0])
            for correlation_id, body in [await self.answer() for _ in range(count)]
        ]

    async def numbers(self, count: int) -> list[int]:
        """The correlation ids of the next answers."""
        return [(await self.answer())[0] for _ in range(count)]

    async def is_closed(self) -> bool:
        async with asyncio.timeout(BOUND_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def heartbeat(correlation_id: int, group: str = "now", version: int = 0) -> bytes:
    head = struct.pack(">hhi", ApiKey.HEARTBEAT, version, correlation_id) + string("test")
    return head + string(group) + struct.pack(">i", correlation_id) + string("")


def leave(correlation_id: int, group: str = "now") -> bytes:
    head = struct.pack(">hhi", ApiKey.LEAVE_GROUP, 0, correlation_id) + string("test")
    return head + string(group) + string(str(correlation_id))


def sync(correlation_id: int) -> bytes:
    """A SyncGroup without assignments, which waits."""
    head = struct.pack(">hhi", ApiKey.SYNC_GROUP, 0, correlation_id) + string("test")
    return head + string("group") + struct.pack(">i", correlation_id) + string("") + struct.pack(">i", 0)


def produce(correlation_id: int, transactional_id: str = "now") -> bytes:
    """A Produce without partitions; the number is its timeout, too."""
    head = struct.pack(">hhi", ApiKey.PRODUCE, 3, correlation_id) + string("test")
    return head + string(transactional_id) + struct.pack(">hii", -1, correlation_id, 0)


class Network:
    def __init__(self, server: Server, answering: Answering, host: str, port: int) -> None:
        self.server, self.answering = server, answering
        self.host, self.port = host, port
        self._writers: list[asyncio.StreamWriter] = []

    async def client(self) -> Client:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self._writers.append(writer)
        return Client(reader, writer)

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        for writer in self._writers:
            try:
                await writer.wait_closed()
            except ConnectionError:
                continue

    def stop_looking(self) -> None:
        """Leave the checks of connections to the test, with times of its own."""
        self.server._looking.cancel()

    async def settle(self) -> None:
        """Wait until the server has done all that it can do with what was sent."""
        for _ in range(3):
            probe = await self.client()
            probe.send(heartbeat(0, "probe"))
            await probe.numbers(1)
            probe.writer.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)


@asynccontextmanager
async def network(
    *,
    is_broker: Callable[[Session], bool | None] = lambda _: False,
    heartbeats_from: Callable[[Any], bool] = never,
    budget: LoopBudget | None = None,
    **config: Any,
) -> AsyncIterator[Network]:
    answering = Answering(heartbeats_from)
    bare = server_of(answering.routes, BrokerConfig(**config), is_broker, budget=budget)
    async with asyncio.timeout(60), bare as server:
        host, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
        made = Network(server, answering, host, port)
        try:
            yield made
        finally:
            answering.released.set()
            await made.close()
