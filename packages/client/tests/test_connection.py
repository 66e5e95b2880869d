from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import (
    BadResponse,
    ConnectFailed,
    ConnectionClosed,
    RequestTimeout,
    UnsupportedByBroker,
)
from ottla.client.security import SecurityConfig
from ottla.client.settings import from_properties
from ottla.client.testing import ScriptedBroker
from ottla.client.wire import WireProtocol, _sources_for
from ottla.protocol.api import ApiKey, RequestHeader, encode_request_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def address_of(broker: ScriptedBroker) -> Address:
    return Address(broker.host, broker.port)


async def test_a_request_is_sent_in_the_highest_version_both_sides_speak() -> None:
    async with ScriptedBroker({ApiKey.METADATA: (0, 5)}) as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))

        async with Connection(address_of(broker)) as connection:
            answer = await connection.send(MetadataRequest(topics=None), MetadataResponse)

    assert answer.topics[0].name == "orders"
    assert broker.requests[-1][1] == 5


@pytest.mark.parametrize("newest", [0, 1, 2])
async def test_a_broker_with_older_api_versions_is_asked_again_in_its_own(newest: int) -> None:
    async with ScriptedBroker({ApiKey.API_VERSIONS: (0, newest)}) as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())

        async with Connection(address_of(broker)) as connection:
            assert ApiKey.METADATA in connection.versions

    assert broker.requests[-1][1] == newest
    assert broker.connections == 1


async def serve_only_metadata_0(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond like a broker before 0.10: close the connection at unknown requests."""
    try:
        while True:
            size = int.from_bytes(await reader.readexactly(4), "big")
            key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
            if (key, version) != (ApiKey.METADATA, 0):
                return
            body = struct.pack(">i", correlation_id) + MetadataResponse().encode(0)
            writer.write(struct.pack(">i", len(body)) + body)
    except asyncio.IncompleteReadError:
        return
    finally:
        writer.close()


async def test_a_broker_that_closes_at_api_versions_is_taken_for_an_old_one() -> None:
    async with await asyncio.start_server(serve_only_metadata_0, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Connection(Address("127.0.0.1", port)) as connection:
            answer = await connection.send(MetadataRequest(topics=[]), MetadataResponse)

            assert answer == MetadataResponse()


async def test_a_broker_that_closes_at_everything_is_not_taken_for_an_old_one() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionClosed):
            await Connection(Address("127.0.0.1", port)).connect()


async def test_a_broker_that_closes_only_once_is_not_taken_for_an_old_one() -> None:
    async with ScriptedBroker() as broker:
        broker.on(ApiVersionsRequest, lambda _: broker.api_versions() if broker.connections > 1 else None)
        broker.on(MetadataRequest, lambda _: broker.metadata("t"))
        async with Connection(Address(broker.host, broker.port)) as connection:
            assert connection.versions[MetadataRequest.API_KEY][1] == MetadataRequest.MAX_VERSION


async def test_a_port_that_hangs_up_on_a_tls_greeting_is_named_as_such() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = ClientConfig(security=SecurityConfig(security_protocol="SSL"))
        with pytest.raises(ConnectFailed, match="TLS"):
            await Connection(Address("127.0.0.1", port), config).connect()


async def test_an_api_the_broker_lacks_is_refused_before_anything_is_sent() -> None:
    async with ScriptedBroker() as broker, Connection(address_of(broker)) as connection:
        with pytest.raises(UnsupportedByBroker, match=r"CREATE_TOPICS .* does not serve it"):
            await connection.send(CreateTopicsRequest(), CreateTopicsResponse)

        assert len(broker.requests) == 1


async def test_many_requests_at_once_each_get_their_own_response() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda request: broker.metadata(request.topics[0].name or ""))  # type: ignore[index]

        async with Connection(address_of(broker)) as connection:
            names = [f"topic-{number}" for number in range(50)]
            answers = await asyncio.gather(
                *(connection.send(_asking_for(name), MetadataResponse) for name in names)
            )

    assert [answer.topics[0].name for answer in answers] == names


async def test_a_large_response_arrives_whole() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("wide", partitions=20_000))

        async with Connection(address_of(broker)) as connection:
            first, second = await asyncio.gather(
                connection.send(_asking_for("wide"), MetadataResponse),
                connection.send(_asking_for("wide"), MetadataResponse),
            )

    assert len(first.topics[0].partitions) == len(second.topics[0].partitions) == 20_000


async def test_a_response_above_the_maximum_closes_the_connection() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata("wide", partitions=1_000))

        async with Connection(address_of(broker), ClientConfig(max_response_bytes=10_000)) as connection:
            with pytest.raises(BadResponse, match="at most 10000"):
                await connection.send(_asking_for("wide"), MetadataResponse)

            assert not connection.is_open


async def test_a_broker_that_says_nothing_fails_the_request_and_what_waits_behind_it() -> None:
    async with _listening(_say_nothing_after_versions) as address, Connection(address) as connection:
        slow = asyncio.gather(
            connection.send(_asking_for("a"), MetadataResponse, timeout_s=0.05),
            connection.send(_asking_for("b"), MetadataResponse, timeout_s=30),
            return_exceptions=True,
        )
        first, second = await slow

    assert isinstance(first, RequestTimeout)
    assert isinstance(second, RequestTimeout)


async def test_a_broken_connection_fails_all_that_wait() -> None:
    async with ScriptedBroker() as broker, Connection(address_of(broker)) as connection:
        broker.on(MetadataRequest, lambda _: None)
        connection.versions = {ApiKey.METADATA: (0, 1)}

        outcomes = await asyncio.gather(
            *(connection.send(_asking_for("a"), MetadataResponse) for _ in range(3)), return_exceptions=True
        )

        assert all(isinstance(outcome, ConnectionClosed) for outcome in outcomes)
        with pytest.raises(ConnectionClosed):
            await connection.send(_asking_for("a"), MetadataResponse)


async def test_a_cancelled_request_does_not_shift_the_responses_of_others() -> None:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda request: broker.metadata(request.topics[0].name or ""))  # type: ignore[index]

        async with Connection(address_of(broker)) as connection, asyncio.TaskGroup() as group:
            given_up = group.create_task(connection.send(_asking_for("a"), MetadataResponse))
            kept = group.create_task(connection.send(_asking_for("b"), MetadataResponse))
            await asyncio.sleep(0)
            given_up.cancel()

    assert kept.result().topics[0].name == "b"


async def test_a_cancelled_request_whose_response_never_comes_ends_the_connection_when_it_is_due() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata())
        async with Connection(address_of(broker), ClientConfig(request_timeout_ms=60_000)) as connection:
            broker.hold()
            given_up = asyncio.ensure_future(
                connection.send(_asking_for("a"), MetadataResponse, timeout_s=0.2)
            )
            behind = asyncio.ensure_future(connection.send(_asking_for("b"), MetadataResponse))
            while not broker.seen(MetadataRequest):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            given_up.cancel()

            with pytest.raises(RequestTimeout):
                await behind
            assert connection.timed_out


async def test_a_refused_connection_names_the_address() -> None:
    async with ScriptedBroker() as broker:
        address = address_of(broker)

    with pytest.raises(ConnectFailed, match=f"{address.host}:{address.port}"):
        await Connection(address).connect()


async def test_something_that_is_not_kafka_is_a_bad_response() -> None:
    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with _listening(speak_http) as address:
        with pytest.raises(BadResponse):
            await Connection(address).connect()


async def test_connecting_to_a_broker_that_never_responds_ends_at_the_timeout() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with _listening(say_nothing) as address:
        config = ClientConfig(socket_connection_setup_timeout_ms=50)
        with pytest.raises(ConnectFailed, match=r"not ready within 0\.05 s"):
            await Connection(address, config).connect()


def _asking_for(name: str) -> MetadataRequest:
    from ottla.protocol.messages.metadata import MetadataRequestTopic

    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


class _listening:  # noqa: N801 - reads as a phrase
    """A server with one function for its connections."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    async def __aenter__(self) -> Address:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


async def _say_nothing_after_versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    broker = ScriptedBroker()
    broker.on(MetadataRequest, lambda _: None)
    answer = await broker._next_response(reader)
    assert answer is not None
    writer.write(len(answer).to_bytes(4, "big") + answer)
    await reader.read()
    writer.close()


class Outcome:
    """A reply that keeps its outcome."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.errors: list[BaseException] = []
        self.arrived = asyncio.Event()

    def done(self) -> bool:
        return False

    def set_result(self, frame: memoryview, /) -> None:
        self.frames.append(bytes(frame))
        self.arrived.set()

    def set_exception(self, error: BaseException, /) -> None:
        self.errors.append(error)
        self.arrived.set()


def metadata_request(correlation_id: int) -> list[bytes]:
    body = encode_request_header(RequestHeader(ApiKey.METADATA, 1, correlation_id)) + b"\0\0\0\0"
    return [len(body).to_bytes(4, "big"), body]


async def test_a_request_that_needs_not_wait_is_sent_at_once_and_its_reply_gets_the_response() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Connection(address_of(broker)) as connection:
            reply = Outcome()

            assert connection.send_now(ApiKey.METADATA, metadata_request, reply)
            other = await connection.send(MetadataRequest(topics=None), MetadataResponse)
            await reply.arrived.wait()

            found = connection.decode(memoryview(reply.frames[0]), ApiKey.METADATA, MetadataResponse, 1)
            assert found.topics[0].name == other.topics[0].name == "orders"
            assert connection.version_for(MetadataRequest) == 11


async def test_a_reply_that_is_late_ends_the_connection_though_an_earlier_one_arrived() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Connection(address_of(broker), ClientConfig(request_timeout_ms=200)) as connection:
            answered, late, behind = Outcome(), Outcome(), Outcome()
            assert connection.send_now(ApiKey.METADATA, metadata_request, answered)
            await answered.arrived.wait()
            broker.ignore(MetadataRequest)

            assert connection.send_now(ApiKey.METADATA, metadata_request, late)
            assert connection.send_now(ApiKey.METADATA, metadata_request, behind)
            await behind.arrived.wait()

            assert [type(error) for error in late.errors + behind.errors] == [RequestTimeout] * 2
            assert str(late.errors[0]).endswith("did not answer METADATA within 0.2 s")
            assert not answered.errors
            assert not connection.is_open


async def test_a_closed_connection_takes_no_request_and_its_replies_get_the_reason() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        broker.ignore(MetadataRequest)
        reply = Outcome()
        async with Connection(address_of(broker)) as connection:
            assert connection.send_now(ApiKey.METADATA, metadata_request, reply)

        assert [type(error) for error in reply.errors] == [ConnectionClosed]
        assert not connection.send_now(ApiKey.METADATA, metadata_request, Outcome())


async def test_a_login_that_is_due_is_not_passed_over() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(30):
        broker.on(MetadataRequest, lambda _: broker.metadata("orders"))
        async with Connection(address_of(broker)) as connection:
            connection._renew_at_s = asyncio.get_running_loop().time()

            assert not connection.send_now(ApiKey.METADATA, metadata_request, Outcome())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_request_of_many_large_parts_arrives_whole(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    parts = [bytes([number % 256]) * (3 if number % 2 else 60_000) for number in range(1_500)]
    received: list[bytes] = []
    written, done = asyncio.Event(), asyncio.Event()

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await written.wait()  # the socket is full before anything is read
        received.append(await reader.read(-1))
        writer.close()
        done.set()

    async def send() -> None:
        async with await asyncio.start_server(keep, "127.0.0.1", 0) as server, asyncio.timeout(60):
            address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            loop = asyncio.get_running_loop()
            transport, wire = await loop.create_connection(
                lambda: WireProtocol(address, ClientConfig()), *address
            )
            wire.write(parts)
            wire.write([b"the", b" end"])
            written.set()
            transport.close()
            await done.wait()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(send())

    assert received == [b"".join(parts) + b"the end"]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("send", "receive"),
    [
        ("send.buffer.bytes", "receive.buffer.bytes"),
        ("socket.send.buffer.bytes", "socket.receive.buffer.bytes"),
    ],
    ids=["Java", "librdkafka"],
)
def test_the_buffers_of_a_connection_have_the_sizes_that_are_set(
    loop: Callable[[], asyncio.AbstractEventLoop], send: str, receive: str
) -> None:
    async def sizes() -> list[int]:
        async with ScriptedBroker() as broker:
            config = from_properties(ClientConfig, {send: "20000", receive: "30000"})
            async with Connection(address_of(broker), config) as connection:
                assert connection._wire is not None
                assert connection._wire._transport is not None
                opened = connection._wire._transport.get_extra_info("socket")
                return [
                    opened.getsockopt(socket.SOL_SOCKET, kind)
                    for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)
                ]

    with asyncio.Runner(loop_factory=loop) as runner:
        found = runner.run(sizes())

    assert found in ([20_000, 30_000], [40_000, 60_000])  # Linux reports twice the size


async def test_a_refused_connection_with_sizes_of_buffers_says_so() -> None:
    config = ClientConfig(receive_buffer_bytes=30_000)
    with socket.socket() as bound, pytest.raises(ConnectFailed, match="Connection refused"):
        bound.bind(("127.0.0.1", 0))  # and does not listen
        await Connection(Address("127.0.0.1", bound.getsockname()[1]), config).connect()


@pytest.mark.parametrize(
    ("source_host", "seen"),
    [
        ("127.0.0.9", "127.0.0.9"),
        ("192.0.2.1", "127.0.0.1"),  # no address of this machine
        ("nowhere.invalid", "127.0.0.1"),
        ("::1", "127.0.0.1"),
        (None, "127.0.0.1"),
    ],
)
async def test_a_connection_comes_from_its_source_host_where_that_is_this_machine(
    source_host: str | None, seen: str
) -> None:
    sources: list[str] = []

    async def note_source(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sources.append(writer.get_extra_info("peername")[0])
        writer.close()

    server = await asyncio.start_server(note_source, "127.0.0.1", 0)
    async with server:
        address = Address(*server.sockets[0].getsockname())
        with pytest.raises(ConnectionClosed):
            await Connection(address, source_host=source_host).connect()

    assert set(sources) == {seen}


class RefusingLoop(asyncio.SelectorEventLoop):
    """A loop on which no other side accepts a connection; it has the sources of the attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []

    async def sock_connect(self, sock: socket.socket, address: object) -> None:
        self.sources.append(sock.getsockname()[0])
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def test_a_refused_connection_is_not_tried_again_from_another_source() -> None:
    """A broker that begins to serve between the two would see the wrong address."""
    loop = RefusingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner, pytest.raises(ConnectFailed):
        runner.run(Connection(Address("127.0.0.1", 9), source_host="127.0.0.9").connect())

    assert loop.sources == ["127.0.0.9"]


def test_a_loopback_source_is_for_loopback_targets_alone() -> None:
    sources = ["127.0.1.1", "10.0.0.1", "fd00::1"]

    assert list(_sources_for("10.0.0.2", sources)) == ["10.0.0.1", None]
    assert list(_sources_for("127.0.0.2", sources)) == ["127.0.1.1", None]


def test_zero_leaves_the_buffers_to_the_system_as_in_librdkafka() -> None:
    properties = {"socket.send.buffer.bytes": "0", "socket.receive.buffer.bytes": "0"}

    config = from_properties(ClientConfig, properties)

    assert (config.send_buffer_bytes, config.receive_buffer_bytes) == (-1, -1)
