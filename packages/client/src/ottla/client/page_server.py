"""An HTTP server for a process's pages, with a bound on connections and on the time that a client takes.

It has an event loop on a thread of its own: a client that asks slowly, or does not read its page, holds no
thread. Pages are made on a few threads, so that `answer` may wait for the process's own loop.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

THREADS: Final = 4
"""Pages that are made at a time."""
CONNECTIONS: Final = 64
"""Connections at a time; one more takes the place of the oldest."""
CLIENT_TIMEOUT_S: Final = 5.0
"""How long a client may take to ask, and to read its page."""
STOP_TIMEOUT_S: Final = 5.0
_MOST_HEAD_BYTES: Final = 16 << 10


class Page(NamedTuple):
    """An answer."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


class PageServer:
    """Serves what `answer` returns for the path of each GET, made on at most four threads.

    An `answer` that raises becomes a 500 without details, and one line of the log.
    """

    def __init__(
        self,
        host: str,
        port: int,
        answer: Callable[[str], Page],
        name: str,
        *,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        """Bind the address; port 0 takes a free one. Raises OSError when it cannot be bound.

        `name` is that of its threads, and what its log lines say is served.
        """
        self._answer = answer
        self._name = name
        self._client_timeout_s = client_timeout_s
        self._socket = _bound(host, port)
        self._connections: dict[asyncio.StreamWriter, None] = {}
        self._threads = ThreadPoolExecutor(THREADS, name)
        self._loop = asyncio.SelectorEventLoop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    @property
    def host(self) -> str:
        """The bound address."""
        return str(self._socket.getsockname()[0])

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and end the threads; connections are closed."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- on its own loop

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket, limit=_MOST_HEAD_BYTES)
        async with server:
            await self._stopping.wait()
        for writer in list(self._connections):
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            await self._answer_one(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            facts = {"server": self._name, "client": writer.get_extra_info("peername"), "reason": str(error)}
            _log.debug("a page is not sent", extra=facts)
        finally:
            self._connections.pop(writer, None)
            writer.transport.abort()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._client_timeout_s):
            head = await reader.readuntil(b"\r\n\r\n")
        answer = await self._loop.run_in_executor(self._threads, self._made, head)
        async with asyncio.timeout(self._client_timeout_s):
            writer.write(answer)
            writer.close()
            await writer.wait_closed()  # everything is sent

    # ---- on one of the threads

    def _made(self, head: bytes) -> bytes:
        request, *fields = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        if method != "GET":
            return _http(HTTPStatus.NOT_IMPLEMENTED, "text/plain", b"only GET is served\n")
        path = rest.partition(" ")[0].partition("?")[0]
        try:
            page = self._answer(path)
        except Exception as error:
            _log.warning("a page of %s could not be made: %s", self._name, error)
            return _http(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"the page could not be made\n")
        if any(field.lower().startswith("accept-encoding:") and "gzip" in field for field in fields):
            body = gzip.compress(page.body, compresslevel=1)
            return _http(page.status, page.content_type, body, "Content-Encoding: gzip\r\n")
        return _http(page.status, page.content_type, page.body)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    plug = socket.socket(family, kind, protocol)
    try:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        plug.bind(address)
        plug.listen(CONNECTIONS)
    except OSError:
        plug.close()
        raise
    return plug


def _http(status: HTTPStatus, content_type: str, body: bytes, more_fields: str = "") -> bytes:
    head = (
        f"HTTP/1.0 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n{more_fields}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
