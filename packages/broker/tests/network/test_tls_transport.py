"""TLS beneath connections: requests, handshakes that fail or never end, and ends.

600 lines because all of them need the same server, certificates and clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from ottla.broker.config import BrokerConfig, broker_config_from
from ottla.broker.network.listener import Server
from ottla.broker.network.session import SessionState
from ottla.broker.network.testing import Answering, Client, heartbeat, on_both_loops, server_of
from ottla.broker.quotas.handshakes import UnfinishedHandshakes
from ottla.broker.security.tls.contexts import ListenerTls
from ottla.broker.security.tls.testing import (
    DAY,
    Authority,
    Certificate,
    client_hello,
    key_updates,
    records_of,
    renegotiations,
)

BOUND_S = 120
AUTHORITY = Authority()
BROKER = AUTHORITY.sign("broker")
ALICE = AUTHORITY.sign("alice")
STRANGER = Authority("stranger").sign("mallory")
EXPIRED = AUTHORITY.sign("bob", lasts=-DAY)


def tls_settings(**more: str) -> BrokerConfig:
    return broker_config_from(
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": BROKER.chain_pem,
            "ssl.keystore.key": BROKER.key_pem(),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": AUTHORITY.pem,
            **{key.replace("_", "."): text for key, text in more.items()},
        }
    )


def client_context(
    tmp_path: Path, certificate: Certificate | None = None, *, trusts: Authority = AUTHORITY
) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trusts.pem)
    if certificate is not None:
        context.load_cert_chain(certificate.write(tmp_path / f"{id(certificate)}.pem"))
    return context


class Listening:
    def __init__(self, server: Server, answering: Answering, port: int) -> None:
        self.server, self.answering, self.port = server, answering, port
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def unfinished(self) -> UnfinishedHandshakes:
        assert self.server._tls is not None
        return self.server._tls.unfinished

    async def connect(self, context: ssl.SSLContext | None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self.writers.append(writer)
        return Client(reader, writer)

    async def sessions(self) -> list[str]:
        return [str(connection.session.principal) for connection in self.server.connections.all()]


@asynccontextmanager
async def listening(
    config: BrokerConfig | None = None, state: SessionState = SessionState.AUTHENTICATED, **more: Any
) -> AsyncIterator[Listening]:
    answering = Answering()
    tls = ListenerTls("SSL", config or tls_settings(), is_of_brokers=False)
    async with asyncio.timeout(BOUND_S), server_of(answering.routes, BrokerConfig(**more)) as server:
        _, port = await server.listen("SSL", "127.0.0.1", 0, tls=tls, initial_state=state)
        made = Listening(server, answering, port)
        try:
            yield made
        finally:
            answering.released.set()
            for writer in made.writers:
                writer.close()
            for writer in made.writers:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


async def until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_of_every_size_are_answered(version: ssl.TLSVersion, tmp_path: Path) -> None:
    async def talk() -> None:
        context = client_context(tmp_path)
        context.minimum_version = context.maximum_version = version
        async with listening() as there:
            client = await there.connect(context)
            for size in (1, 100, 16_384, 16_385, 70_000, 300_000):
                client.send(heartbeat(size) + b"\0" * size)
            assert await client.numbers(6) == [1, 100, 16_384, 16_385, 70_000, 300_000]
            client.send(*(heartbeat(number) for number in range(2_000)))
            assert await client.numbers(2_000) == list(range(2_000))

    asyncio.run(talk())


@on_both_loops
async def test_requests_are_answered_in_pieces_of_one_byte(tmp_path: Path) -> None:
    async with listening() as there:
        client = await there.connect(client_context(tmp_path))
        frame = heartbeat(7)
        for byte in struct.pack(">i", len(frame)) + frame:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert await client.numbers(1) == [7]


class Encrypted:
    """A client's end whose records go over the wire in any pieces."""

    def __init__(
        self, context: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.reader, self.writer = reader, writer

    async def shake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.writer.write(self.outgoing.read())
                self.incoming.write(await self.reader.read(65_536))
            else:
                break

    def records(self, data: bytes) -> bytes:
        """Encrypt; what is left of the handshake comes first."""
        self.tls.write(data)
        return self.outgoing.read()


@on_both_loops
async def test_records_are_read_in_pieces_of_any_size(tmp_path: Path) -> None:
    chance = random.Random(3)
    async with listening() as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        client = Encrypted(client_context(tmp_path), reader, writer)
        await client.shake()
        frames = [
            heartbeat(number) + b"\0" * chance.choice((0, 3, 900, 16_400, 70_000)) for number in range(60)
        ]
        stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
        wire = b""
        while stream:
            size = chance.choice((1, 4, 200, 16_384))
            wire, stream = wire + client.records(stream[:size]), stream[size:]
        while wire:
            size = chance.choice((1, 3, 6, 1_000, 16_406, 40_000, 200_000))
            writer.write(wire[:size])
            wire = wire[size:]
            await asyncio.sleep(0.001)
        answers = Client(reader, writer)
        found: list[int] = []
        while len(found) < len(frames):
            client.incoming.write(await answers.reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while True:
                    (number,) = struct.unpack(">4xi", client.tls.read(10)[:8])
                    found.append(number)
        assert found == list(range(60))


@on_both_loops
async def test_a_ticket_goes_out_with_the_first_answer_in_one_piece(tmp_path: Path) -> None:
    async with listening() as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        client = Encrypted(client_context(tmp_path), reader, writer)
        await client.shake()
        writer.write(client.outgoing.read())
        await until(there.server.connections.all)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)

        writer.write(client.records(struct.pack(">i", len(heartbeat(7))) + heartbeat(7)))
        client.incoming.write(await reader.read(65_536))
        assert client.tls.read(100)[4:8] == struct.pack(">i", 7)
        assert client.tls.session is not None
        assert client.tls.session.has_ticket


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_both_loops
async def test_a_client_resumes_its_session(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context = client_context(tmp_path)
    context.minimum_version = context.maximum_version = version

    def talk(port: int, session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection(("127.0.0.1", port), BOUND_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as encrypted,
        ):
            frame = heartbeat(7)
            encrypted.sendall(struct.pack(">i", len(frame)) + frame)
            assert encrypted.recv(100)[4:8] == struct.pack(">i", 7)
            return encrypted.session, encrypted.session_reused

    async with listening() as there:
        session, is_resumed = await asyncio.to_thread(talk, there.port, None)
        assert not is_resumed
        session, is_resumed = await asyncio.to_thread(talk, there.port, session)
        assert is_resumed
        _, is_resumed = await asyncio.to_thread(talk, there.port, session)
        assert is_resumed


@pytest.mark.parametrize("size", [1, 4, 5, 20])
@on_both_loops
async def test_a_client_that_leaves_amid_a_record_is_closed(tmp_path: Path, size: int) -> None:
    async with listening() as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        client = Encrypted(client_context(tmp_path), reader, writer)
        await client.shake()
        writer.write(client.outgoing.read())
        await until(there.server.connections.all)
        writer.write(client.records(b"x" * 100)[:size])
        writer.write_eof()
        await until(lambda: not there.server.connections.all())


@pytest.mark.parametrize("kind", [0x17, 0x16, 0x80])
@on_both_loops
async def test_a_record_that_is_too_long_is_refused_by_its_header(tmp_path: Path, kind: int) -> None:
    async with listening() as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        client = Encrypted(client_context(tmp_path), reader, writer)
        await client.shake()
        writer.write(client.outgoing.read() + bytes([kind, 3, 3, 0xFF, 0xFF]))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until(lambda: not there.server.connections.all())


@on_both_loops
async def test_the_principal_is_the_name_in_the_clients_certificate(tmp_path: Path) -> None:
    rules = {"ssl_client_auth": "requested", "ssl_principal_mapping_rules": "RULE:^CN=(al.*)$/$1/,DEFAULT"}
    async with listening(tls_settings(**rules)) as there:
        named, nameless = (
            await there.connect(client_context(tmp_path, ALICE)),
            await there.connect(client_context(tmp_path)),
        )
        for client in (named, nameless):
            client.send(heartbeat(1))
            assert await client.numbers(1) == [1]
        assert sorted(await there.sessions()) == ["User:ANONYMOUS", "User:alice"]


@on_both_loops
async def test_answers_that_the_client_does_not_read_hold_back_its_requests(tmp_path: Path) -> None:
    async with listening(socket_send_buffer_bytes=4_096, socket_receive_buffer_bytes=4_096) as there:
        client = await there.connect(client_context(tmp_path))
        await until(there.server.connections.all)
        reading = cast(asyncio.Transport, client.writer.transport)
        reading.pause_reading()
        client.send(*(heartbeat(number % 30_000) for number in range(40_000)))
        [connection] = there.server.connections.all()
        await until(lambda: connection.responses.blocked or len(there.answering.started) == 40_000)
        reading.resume_reading()
        assert await client.numbers(40_000) == [number % 30_000 for number in range(40_000)]


@on_both_loops
async def test_a_client_that_leaves_gets_the_answers_that_are_due(tmp_path: Path) -> None:
    async with listening() as there:
        loop = asyncio.get_running_loop()
        plain = socket.create_connection(("127.0.0.1", there.port))
        context = client_context(tmp_path)

        def talk() -> bytes:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                frame = heartbeat(7)
                encrypted.sendall(struct.pack(">i", len(frame)) + frame)
                plain_descriptor = socket.socket(fileno=encrypted.fileno())
                plain_descriptor.shutdown(socket.SHUT_WR)
                plain_descriptor.detach()
                return encrypted.recv(100)

        answer = await loop.run_in_executor(None, talk)
        assert struct.unpack(">i", answer[4:8]) == (7,)
        await until(lambda: not there.server.connections.all())


@on_both_loops
async def test_a_closed_connection_announces_its_end(tmp_path: Path) -> None:
    async with listening() as there:
        client = await there.connect(client_context(tmp_path))
        client.send(heartbeat(1, "close"))
        assert await client.reader.read() == b""  # asyncio's TLS raises for an end without announcement


# ---- handshakes that fail: one line, and nobody in


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        str(record.__dict__["reason"])
        for record in caplog.records
        if record.getMessage() == "TLS handshake failed"
    ]


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (None, "the client has no certificate, and ssl.client.auth is required"),
        (STRANGER, "the client's certificate is refused: unable to get local issuer certificate"),
        (EXPIRED, "the client's certificate is refused: certificate has expired"),
    ],
)
def test_a_wrong_certificate_is_named_in_one_line(
    certificate: Certificate | None, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        async with listening(tls_settings(ssl_client_auth="required")) as there:
            for _ in range(3):
                with contextlib.suppress(OSError):
                    client = await there.connect(client_context(tmp_path, certificate))
                    client.send(heartbeat(1))
                    assert await client.reader.read() == b""
            await until(lambda: failures(caplog))
            assert not there.server.connections.all()

    with caplog.at_level(logging.WARNING):
        asyncio.run(talk())
    assert failures(caplog) == [reason]


def test_a_client_that_does_not_trust_the_broker_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        async with listening() as there:

            def connect() -> None:  # asyncio's own TLS sends no alert
                context = client_context(tmp_path, trusts=Authority("other"))
                with socket.create_connection(("127.0.0.1", there.port)) as plain:
                    context.wrap_socket(plain, server_hostname="127.0.0.1")

            with pytest.raises(ssl.SSLError):
                await asyncio.get_running_loop().run_in_executor(None, connect)
            await until(lambda: failures(caplog))

    with caplog.at_level(logging.WARNING):
        asyncio.run(talk())
    assert failures(caplog) == [
        "the client refused: unknown ca; perhaps it does not trust the broker's certificate"
    ]


def test_a_plaintext_client_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        async with listening() as there:
            client = await there.connect(None)
            client.send(heartbeat(1))
            assert await client.is_closed()

    with caplog.at_level(logging.WARNING):
        asyncio.run(talk())
    assert failures(caplog) == ["the client does not speak TLS: its security.protocol has to be SSL"]


def test_a_tls_client_on_a_plaintext_listener_is_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        answering = Answering()
        async with asyncio.timeout(BOUND_S), server_of(answering.routes) as server:
            _, port = await server.listen("PLAINTEXT", "127.0.0.1", 0)
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", port, ssl=client_context(tmp_path))

    with caplog.at_level(logging.WARNING):
        asyncio.run(talk())
    reasons = [record.__dict__.get("reason") for record in caplog.records]
    assert "the client speaks TLS, which this listener does not: see its security.protocol" in reasons


@on_both_loops
async def test_random_bytes_and_damaged_records_let_nobody_in(tmp_path: Path) -> None:
    chance = random.Random(7)
    hello_in, hello_out = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = client_context(tmp_path).wrap_bio(hello_in, hello_out, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    greeting = hello_out.read()
    async with listening() as there:
        for number in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", there.port)
            there.writers.append(writer)
            data = bytearray(greeting if number % 2 else chance.randbytes(chance.randrange(1, 600)))
            data[0] = 0x16
            for _ in range(chance.randrange(1, 5)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            writer.write(bytes(data))
            if number % 3 == 0:
                writer.write_eof()
        client = await there.connect(client_context(tmp_path))
        client.send(heartbeat(5))
        assert await client.numbers(1) == [5]
        assert len(there.server.connections.all()) == 1


@on_both_loops
async def test_damaged_records_after_the_handshake_end_the_connection(tmp_path: Path) -> None:
    async with listening() as there:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_context(tmp_path).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        client.write(struct.pack(">i", len(heartbeat(1))) + heartbeat(1))
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        writer.write(bytes(record))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until(lambda: not there.server.connections.all())
        assert not there.answering.started


# ---- clients that keep the keys busy


def in_clear(port: int) -> socket.socket:
    """Connect without TLS, with a small buffer for answers."""
    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    plug.settimeout(BOUND_S)
    plug.connect(("127.0.0.1", port))
    return plug


UPDATE_BYTES = 27


def broken(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = (record for record in caplog.records if record.getMessage() == "TLS connection failed")
    return [str(record.__dict__["reason"]) for record in found]


@on_both_loops
async def test_a_client_that_asks_for_new_keys_over_and_over_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as there:

        def ask() -> None:
            with in_clear(there.port) as plug:
                updates = key_updates(records_of(plug, client_context(tmp_path), tmp_path), 2_000)
                with contextlib.suppress(ConnectionError):
                    plug.sendall(updates)
                    while plug.recv(65_536):
                        pass

        await asyncio.get_running_loop().run_in_executor(None, ask)
        await until(lambda: not there.server.connections.all())
        assert broken(caplog) == ["the client asks for new keys or handshakes, and sends nothing else"]


@on_both_loops
async def test_answers_to_updates_of_keys_that_nobody_reads_do_not_pile_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(socket_send_buffer_bytes=4_096) as there:

        def ask() -> None:
            with in_clear(there.port) as plug:
                updates = key_updates(records_of(plug, client_context(tmp_path), tmp_path), 4_000)
                with contextlib.suppress(ConnectionError):
                    for at in range(0, len(updates), 270):  # ten of them
                        plug.sendall(updates[at : at + 270])
                        plug.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

        asking = asyncio.get_running_loop().run_in_executor(None, ask)
        most = 0
        await until(there.server.connections.all)
        while connections := there.server.connections.all():
            most = max(most, *(connection.transport.get_write_buffer_size() for connection in connections))
            await asyncio.sleep(0.002)
        await asking
        assert most < 100_000


@on_both_loops
async def test_a_client_that_renegotiates_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as there:
        context = client_context(tmp_path)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")

        def ask() -> None:
            with in_clear(there.port) as plug:
                records = records_of(plug, context, tmp_path)
                hello = client_hello(client_context(tmp_path))[5:]
                with contextlib.suppress(ConnectionError):
                    plug.sendall(renegotiations(records, hello, 500))
                    while plug.recv(65_536):
                        pass

        await asyncio.get_running_loop().run_in_executor(None, ask)
        await until(lambda: not there.server.connections.all())
        assert len(broken(caplog)) == 1


@on_both_loops
async def test_an_update_of_keys_now_and_then_is_answered(tmp_path: Path) -> None:
    async with listening() as there:

        def ask() -> int:
            with in_clear(there.port) as plug:
                records = records_of(plug, client_context(tmp_path), tmp_path)
                plug.sendall(key_updates(records, 6))
                received = 0
                while received < 5 * UPDATE_BYTES:  # the last is answered with the next message
                    received += len(plug.recv(65_536)) or pytest.fail("it is closed")
                return len(there.server.connections.all())

        assert await asyncio.get_running_loop().run_in_executor(None, ask) == 1


# ---- handshakes that never end


@on_both_loops
async def test_half_handshakes_hold_up_nobody_and_end(tmp_path: Path) -> None:
    async with listening() as there:
        unfinished = there.unfinished
        unfinished._within_s = 0.5
        for number in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", there.port)
            there.writers.append(writer)
            if number % 2:
                writer.write(b"\x16\x03\x01\x02\x00\x01")
        client = await there.connect(client_context(tmp_path))
        client.send(heartbeat(5))
        assert await client.numbers(1) == [5]
        await until(lambda: not len(unfinished))
        assert len(there.server.connections.all()) == 1


async def test_a_connection_counts_from_its_accept_and_not_from_its_handshake(tmp_path: Path) -> None:
    async with listening(max_connections=1) as there:
        silent = [await asyncio.open_connection("127.0.0.1", there.port) for _ in range(2)]
        there.writers += [writer for _, writer in silent]
        await until(lambda: len(there.unfinished) == 2)  # one from this machine is beyond the limit

        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        there.writers.append(writer)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""

        for _, writer in silent:
            writer.close()
        await until(lambda: not len(there.unfinished))
        for number in (1, 2):
            client = await there.connect(client_context(tmp_path))
            client.send(heartbeat(number))
            assert await client.numbers(1) == [number]
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await there.connect(client_context(tmp_path))


async def test_a_wait_ends_when_its_client_has_left_behind_tls(tmp_path: Path) -> None:
    async with listening() as there:
        client = await there.connect(client_context(tmp_path))
        client.send(heartbeat(1, "wait"), heartbeat(2))
        await until(lambda: any(found.waits_unseen for found in there.server.connections.all()))

        client.writer.transport.abort()

        while there.server.connections:
            there.server.connections.end_unseen_waits()
            await asyncio.sleep(0.005)
        assert there.answering.cancelled == [1]
