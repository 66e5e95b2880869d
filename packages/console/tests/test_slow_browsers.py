"""Browsers that send nothing, or take nothing: their connections and tasks end, and memory is bounded."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from ottla.console.records.searches import TAILS_AT_ONCE, TAILS_OF_NEWCOMERS, Places
from ottla.console.server import SEND_BUFFER_BYTES
from ottla.registry.server.connections import BoundedConnection

BOUND_S = 60.0
ANSWER = bytes(16 << 20)
"""More than the system keeps for a connection."""
ASKING = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Impatient(BoundedConnection):
    look_every_s = 0.3


class Frugal(BoundedConnection):
    most_held_bytes = 2 * len(ANSWER)


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Send a large answer, as a download is."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"keep-alive")]})
    await send({"type": "http.response.body", "body": ANSWER})


@asynccontextmanager
async def served(protocol: type[BoundedConnection]) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    options: dict[str, Any] = {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(answer, http=protocol, **options))
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([port]))
            try:
                yield port.getsockname()[1], server
            finally:
                server.should_exit = True


async def connected(port: int, request: bytes) -> socket.socket:
    """Connect, and send a request; nothing is read."""
    browser = socket.socket()
    browser.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(browser, ("127.0.0.1", port))
    await loop.sock_sendall(browser, request)
    return browser


async def until_left(server: uvicorn.Server, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while len(server.server_state.connections) > count:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.1\r\nho", ASKING], ids=["nothing", "half", "all"])
async def test_a_browser_that_sends_or_takes_nothing_loses_its_connection(
    request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(Impatient) as (port, server):
        with await connected(port, request_):
            async with asyncio.timeout(BOUND_S):
                while not server.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await until_left(server, 0)
        assert server.server_state.tasks == set()

    reason = "takes nothing" if request_ == ASKING else "asks for nothing"
    assert [getattr(record, "reason", "") for record in caplog.records] == [f"the client {reason}"]


async def test_a_browser_that_takes_little_gets_all_of_its_answer() -> None:
    async with served(Impatient) as (port, _):
        loop, received = asyncio.get_running_loop(), 0
        with await connected(port, ASKING) as browser:
            async with asyncio.timeout(BOUND_S):
                while received < len(ANSWER):
                    received += len(await loop.sock_recv(browser, 64 << 10))
                    await asyncio.sleep(0.001)


async def test_answers_that_are_not_taken_are_bounded_together(caplog: pytest.LogCaptureFixture) -> None:
    async with served(Frugal) as (port, server):
        browsers = [await connected(port, ASKING) for _ in range(8)]
        async with asyncio.timeout(BOUND_S):
            while len(caplog.records) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await until_left(server, 3)
        held = sum(other.held_bytes for other in server.server_state.connections)  # type: ignore[union-attr]
        with suppress(OSError):
            for browser in browsers:
                browser.close()

    assert held <= Frugal.most_held_bytes
    assert {getattr(record, "reason", "") for record in caplog.records} == {"clients take too little"}


def test_one_person_cannot_keep_all_places_of_tails() -> None:
    places = Places(TAILS_AT_ONCE, TAILS_OF_NEWCOMERS)
    eager = [places.enter("eager") for _ in range(TAILS_AT_ONCE + 1)]
    late, later = places.enter("late"), places.enter("later")

    assert sum(places.ahead(ticket) == 0 for ticket in eager) == TAILS_AT_ONCE - TAILS_OF_NEWCOMERS
    assert [places.ahead(ticket) for ticket in (late, later)] == [0, 0]
    places.leave(late)
    assert places.ahead(eager[-1]) > 0
    for ticket in eager[:2]:
        places.leave(ticket)
    assert sum(places.ahead(ticket) == 0 for ticket in eager[2:]) == TAILS_AT_ONCE - TAILS_OF_NEWCOMERS - 1
