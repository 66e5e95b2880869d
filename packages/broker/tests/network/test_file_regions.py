"""File regions over real sockets: complete, in order, and to slow readers too."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker.config import BrokerConfig, broker_config_from
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.metrics import Metrics
from ottla.broker.network.response_queue import (
    MOST_PARTS_AT_ONCE,
    FullSockets,
    LongResponse,
    ResponseQueue,
)
from ottla.broker.network.testing import server_of
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.routes import Route, Routes
from ottla.broker.runtime.loop_budget import LONG
from ottla.broker.security.tls.contexts import ListenerTls
from ottla.broker.security.tls.testing import Authority
from ottla.protocol.api import ApiKey

BOUND_S = 60
LARGE = 4 << 20
"""More than a socket takes whose client does not read."""


@dataclass
class Regions:
    """A response of bytes and regions in turn."""

    parts: list[bytes | Slice]

    def encode_parts(self, version: int) -> list[bytes | Slice]:
        return list(self.parts)

    def encode_in_steps(self, version: int) -> Iterator[bytes | Slice]:
        yield from self.parts


def expected(parts: list[bytes | Slice]) -> bytes:
    return b"".join(one if isinstance(one, bytes) else one.read() for one in parts)


def tls() -> tuple[ListenerTls, ssl.SSLContext]:
    """Return the TLS of a listener, and that of its clients."""
    authority = Authority()
    broker = authority.sign("broker")
    config = broker_config_from(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": broker.chain_pem,
            "ssl.keystore.key": broker.key_pem(),
        }
    )
    return ListenerTls("SSL", config, is_of_brokers=False), ssl.create_default_context(cadata=authority.pem)


async def exchange(
    answers: list[list[bytes | Slice]], *, slow: bool, in_steps: bool = False, encrypted: bool = False
) -> None:
    def handler(services: None, request: Any, context: RequestContext) -> Regions:
        context.turn.steps = LONG + 1 if in_steps else 0
        return Regions(answers[context.header.correlation_id])

    config = BrokerConfig(socket_send_buffer_bytes=8192 if slow else -1)
    routes = Routes([Route(ApiKey.LIST_GROUPS, 0, 0, handler, borrows_buffer=not in_steps)])
    async with asyncio.timeout(BOUND_S), server_of(routes, config) as server:
        of_listener, of_client = tls() if encrypted else (None, None)
        host, port = await server.listen("IT", "127.0.0.1", 0, tls=of_listener)
        reader, writer = await asyncio.open_connection(host, port, limit=4096, ssl=of_client)
        try:
            for number in range(len(answers)):
                frame = struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, number, -1)
                writer.write(struct.pack(">i", len(frame)) + frame)
            for number, parts in enumerate(answers):
                size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
                body = await reader.readexactly(size - 4)
                assert correlation_id == number
                assert body == expected(parts)
        finally:
            writer.close()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("seed", range(2))
def test_regions_arrive_whole_and_in_order(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], slow: bool, seed: int, encrypted: bool
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "regions"
    path.write_bytes(rng.randbytes(3 << 20))
    file = DiskFiles().open(path)

    def region() -> Slice:
        size = rng.choice([0, 1, 1000, 65_536, 65_537, 400_000, 1 << 20])
        return Slice(file, rng.randrange((3 << 20) - size), size)

    answers = [
        [part for _ in range(rng.randrange(1, 4)) for part in (rng.randbytes(rng.randrange(200)), region())]
        for _ in range(12)
    ]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(exchange(answers, slow=slow, encrypted=encrypted))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_long_answer_arrives_whole_and_in_order(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], slow: bool, encrypted: bool
) -> None:
    path = tmp_path / "regions"
    path.write_bytes(random.Random(0).randbytes(10_000))
    file = DiskFiles().open(path)
    long = [part for at in range(3_000) for part in (b"%d" % at, Slice(file, at, at % 100))]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(exchange([long, [b"short"], long], slow=slow, in_steps=True, encrypted=encrypted))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
def test_a_connection_that_closes_writes_its_long_answer_to_the_end(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], slow: bool
) -> None:
    path = tmp_path / "regions"
    path.write_bytes(random.Random(0).randbytes(10_000))
    file = DiskFiles().open(path)
    long = [part for at in range(3_000) for part in (b"%d" % at, Slice(file, at, at % 100))]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(answered_while_it_closes(long, slow=slow))


async def answered_while_it_closes(parts: list[bytes | Slice], *, slow: bool) -> None:
    def handler(services: None, request: Any, context: RequestContext) -> Regions:
        context.turn.steps = LONG + 1
        return Regions(parts)

    config = BrokerConfig(socket_send_buffer_bytes=8192 if slow else -1)
    routes = Routes([Route(ApiKey.LIST_GROUPS, 0, 0, handler)])
    async with asyncio.timeout(BOUND_S), server_of(routes, config) as server:
        reader, writer = await asyncio.open_connection(*await server.listen("PLAINTEXT", "127.0.0.1", 0))
        frame = struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 0, -1)
        writer.write(struct.pack(">i", len(frame)) + frame)
        while not any(connection.responses.parts for connection in server.connections.all()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        for connection in server.connections.all():
            connection.close()
        assert (await reader.read())[8:] == expected(parts)
        writer.close()
        while len(server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_client_that_never_reads_its_answer_is_closed_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "regions"
    path.write_bytes(bytes(LARGE))
    parts: list[bytes | Slice] = [Slice(DiskFiles().open(path), 0, LARGE)]

    def handler(services: None, request: Any, context: RequestContext) -> Regions:
        return Regions(parts)

    config = BrokerConfig(socket_send_buffer_bytes=8192, request_timeout_ms=200)
    routes = Routes([Route(ApiKey.LIST_GROUPS, 0, 0, handler, borrows_buffer=True)])
    async with asyncio.timeout(BOUND_S), server_of(routes, config) as server:
        with socket.create_connection(await server.listen("PLAINTEXT", "127.0.0.1", 0)) as client:
            frame = struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 0, -1)
            client.sendall(struct.pack(">i", len(frame)) + frame)
            while not any(connection.responses.waiting for connection in server.connections.all()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            (connection,) = server.connections.all()
            connection.close()
            assert connection.busy
            while len(server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0)


class EmptyTransport(asyncio.Transport):
    """Has nothing left to write to its socket."""

    def __init__(self, plug: socket.socket) -> None:
        super().__init__({"socket": plug})

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


async def test_a_long_answer_is_sent_over_many_turns_of_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "regions"
    path.write_bytes(b"x" * 100)
    file = DiskFiles().open(path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        full_sockets = FullSockets()
        meter = Metrics().meter("a", "b", "c")
        responses = ResponseQueue(EmptyTransport(ours), lambda: None, meter, full_sockets)
        responses.put(LongResponse([Slice(file, 0, 100)] * 5_000, 500_000))
        left = [len(responses.parts)]
        responses.flush()
        async with asyncio.timeout(BOUND_S):
            while responses.parts:
                left.append(len(responses.parts))
                await asyncio.sleep(0)
        left.append(0)
        responses.close()
        full_sockets.close()

    assert max(before - after for before, after in pairwise(left)) <= MOST_PARTS_AT_ONCE


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
def test_a_file_that_ends_early_closes_the_connection(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop], encrypted: bool
) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"x" * 100)
    file = DiskFiles().open(path)

    with (
        asyncio.Runner(loop_factory=loop) as runner,
        pytest.raises((asyncio.IncompleteReadError, ConnectionError)),
    ):
        runner.run(exchange([[b"head", Slice(file, 50, 100)]], slow=False, encrypted=encrypted))


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_sockets_that_are_full_share_one_descriptor_and_go_on_when_their_clients_read(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    path = tmp_path / "regions"
    path.write_bytes(random.Random(0).randbytes(LARGE))
    parts: list[bytes | Slice] = [Slice(DiskFiles().open(path), 0, LARGE)]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(full_and_read(parts))


async def full_and_read(parts: list[bytes | Slice]) -> None:
    def handler(services: None, request: Any, context: RequestContext) -> Regions:
        return Regions(parts)

    config = BrokerConfig(socket_send_buffer_bytes=8192)
    routes = Routes([Route(ApiKey.LIST_GROUPS, 0, 0, handler, borrows_buffer=True)])
    async with asyncio.timeout(BOUND_S), server_of(routes, config) as server:
        address = await server.listen("PLAINTEXT", "127.0.0.1", 0)

        async def full(count: int) -> list[socket.socket]:
            """Return clients whose responses wait until they read."""
            clients = [socket.create_connection(address) for _ in range(count)]
            while len(server.connections) < count:  # noqa: ASYNC110
                await asyncio.sleep(0)
            before = len(os.listdir("/proc/self/fd"))
            frame = struct.pack(">hhih", ApiKey.LIST_GROUPS, 0, 0, -1)
            for client in clients:
                client.sendall(struct.pack(">i", len(frame)) + frame)
            while not all(connection.responses.waiting for connection in server.connections.all()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) <= before + 1
            return clients

        for client in await full(10):  # these leave; the next get their descriptors
            client.close()
        while len(server.connections):  # noqa: ASYNC110
            await asyncio.sleep(0)
        clients = await full(10)
        for body in await asyncio.gather(*(asyncio.to_thread(received, client) for client in clients)):
            assert body[8:] == expected(parts)


def received(client: socket.socket) -> bytes:
    with client, client.makefile("rb") as stream:
        return stream.read(8 + LARGE)
