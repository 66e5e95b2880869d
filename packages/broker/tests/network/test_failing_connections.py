"""A connection that fails while it writes: the connections behind it in the turn are served all the same."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterable
from itertools import pairwise

import pytest

from ottla.broker.network.connection import Connection
from ottla.broker.network.listener import CLOSING_MS, Server
from ottla.broker.network.request_queue import RequestQueue
from ottla.broker.network.session import SessionState
from ottla.broker.network.testing import heartbeat, network
from ottla.broker.runtime.loop_budget import CLOSED_CONNECTIONS_MS, LoopBudget


class Socket(asyncio.Transport):
    """A transport without a socket: it keeps what is written, or fails as a transport with a fault does."""

    def __init__(self, failure: Exception | None = None) -> None:
        super().__init__()
        self._failure = failure
        self.written = b""
        self.is_aborted = self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._failure is not None:
            raise self._failure
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


class Flushed:
    """A connection that notes its flushes."""

    def __init__(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self.flushes = 0
        self.failures: list[Exception] = []

    def flush(self) -> None:
        self.flushes += 1
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


async def test_a_connection_whose_flush_fails_keeps_no_other_from_being_flushed() -> None:
    fault = RuntimeError("a fault of the broker")
    queue = RequestQueue(10, LoopBudget(lambda: 0.0).arrived_requests)
    connections = [Flushed(), Flushed(fault), Flushed(), Flushed()]

    for connection in connections:
        queue.flush_soon(connection)
    await asyncio.sleep(0)

    assert [connection.flushes for connection in connections] == [1, 1, 1, 1]
    assert connections[1].failures == [fault]


async def test_a_connection_whose_write_fails_is_closed_and_the_others_get_their_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sockets = [Socket(), Socket(RuntimeError("a fault of the broker")), Socket()]
    async with network() as made:
        connections = [connected(made.server, socket) for socket in sockets]

        with caplog.at_level(logging.WARNING):
            for connection in connections:
                receive(connection, heartbeat(7))
            await made.until(lambda: bool(sockets[2].written) or sockets[2].is_aborted)
        for connection in connections:
            connection.connection_lost(None)

    answer = struct.pack(">iih", 6, 7, 7)
    assert [socket.written for socket in sockets] == [answer, b"", answer]
    assert [socket.is_aborted for socket in sockets] == [False, True, False]
    assert [record.message for record in caplog.records] == ["connection failed"]


async def test_connections_that_fail_alike_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    sockets = [Socket(RuntimeError("a fault of the broker")) for _ in range(100)]
    async with network() as made:
        connections = [connected(made.server, socket) for socket in sockets]
        for connection in connections:
            receive(connection, heartbeat(7))
        await made.until(lambda: all(socket.is_aborted for socket in sockets))
        for connection in connections:
            connection.connection_lost(None)

    (line,) = [record for record in caplog.records if record.message == "connection failed"]
    assert line.exc_info


@pytest.mark.parametrize("reason", ["removed", "idle"])
async def test_thousands_of_connections_are_closed_in_many_turns(reason: str) -> None:
    sockets = [Socket() for _ in range(2_000)]
    async with network(connections_max_idle_ms=60_000) as made:
        connections = [connected(made.server, socket) for socket in sockets]

        if reason == "removed":
            made.server.close_connections("PLAINTEXT")
        else:
            made.server.close_idle(asyncio.get_running_loop().time() + 61)
        turns = [closed(sockets)]
        while turns[-1] < len(sockets) and len(turns) < 5_000:
            await asyncio.sleep(0)
            turns.append(closed(sockets))
        for connection in connections:
            connection.connection_lost(None)

    assert turns[-1] == len(sockets)
    assert max(later - earlier for earlier, later in pairwise(turns)) <= CLOSED_CONNECTIONS_MS / CLOSING_MS


def closed(sockets: Iterable[Socket]) -> int:
    return sum(socket.is_closed for socket in sockets)


def connected(server: Server, socket: Socket) -> Connection:
    connection = Connection(server._shared, "PLAINTEXT", SessionState.AUTHENTICATED)
    connection.connection_made(socket)
    return connection


def receive(connection: Connection, request: bytes) -> None:
    frame = struct.pack(">i", len(request)) + request
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
