"""Pages over HTTP, and clients that are slow or many."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from ottla.client.page_server import CONNECTIONS, Page, PageServer

BOUND_S = 30
LARGE = bytes(16 << 20)
"""More than a socket takes when nothing is read from it."""


@asynccontextmanager
async def served(
    answer: Callable[[str], Page] = lambda path: Page(path.encode()), client_timeout_s: float = 3600
) -> AsyncIterator[PageServer]:
    server = PageServer("127.0.0.1", 0, answer, "pages", client_timeout_s=client_timeout_s)
    server.start()
    try:
        async with asyncio.timeout(BOUND_S):
            yield server
    finally:
        await asyncio.to_thread(server.stop)


async def asked(server: PageServer, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    return reader, writer


async def get(server: PageServer, path: str = "/page", fields: str = "") -> tuple[str, bytes]:
    """Return the first line and the body of an answer."""
    reader, writer = await asked(server, f"GET {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return head.decode().partition("\r\n")[0], body


async def test_a_page_is_served_by_its_path_and_compressed_for_those_that_accept_it() -> None:
    async with served() as server:
        assert await get(server, "/a?b") == ("HTTP/1.0 200 OK", b"/a")
        _, body = await get(server, "/a", "Accept-Encoding: deflate, gzip\r\n")

    assert gzip.decompress(body) == b"/a"


async def test_an_answer_has_the_status_of_its_page() -> None:
    def answer(path: str) -> Page:
        if path == "/fails":
            raise ValueError("secret")
        return Page(b"no", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async with served(answer) as server:
        assert (await get(server))[0] == "HTTP/1.0 503 Service Unavailable"
        failed, body = await get(server, "/fails")

    assert failed == "HTTP/1.0 500 Internal Server Error"
    assert b"secret" not in body


async def test_clients_that_do_not_read_their_pages_delay_no_other() -> None:
    async with served(lambda path: Page(LARGE if path == "/large" else b"small")) as server:
        unread = [await asked(server, b"GET /large HTTP/1.1\r\n\r\n") for _ in range(30)]

        assert (await get(server))[1] == b"small"
        for _, writer in unread:
            writer.transport.abort()


async def test_clients_that_do_not_ask_delay_no_other() -> None:
    async with served() as server:
        silent = [await asked(server, b"GET /slow HT") for _ in range(30)]

        assert (await get(server))[1] == b"/page"
        for _, writer in silent:
            writer.transport.abort()


async def test_a_client_that_takes_too_long_is_closed() -> None:
    async with served(lambda _: Page(LARGE), client_timeout_s=0.2) as server:
        unread, first = await asked(server, b"GET /large HTTP/1.1\r\n\r\n")
        received = len(await unread.readexactly(1))
        silent, second = await asked(server, b"GET /slow HT")

        assert await silent.read() == b""
        with suppress(ConnectionError):
            while data := await unread.read(1 << 20):
                received += len(data)
        assert received < len(LARGE)
        for writer in (first, second):
            writer.transport.abort()


async def test_one_connection_too_many_takes_the_place_of_the_oldest() -> None:
    async with served() as server:
        silent = [await asked(server, b"GET") for _ in range(CONNECTIONS)]

        assert (await get(server))[1] == b"/page"
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.transport.abort()
