"""An HTTP server for a process's pages, with a bound on connections and on the time that a client takes.

It has an event loop on a thread of its own: a client that asks slowly, or does not read its page, holds no
thread. Pages are made on a few threads, so that `answer` may wait for the process's own loop. Where other
machines can reach it, it wants TLS and a token: pages name topics, groups and clients.
"""

from __future__ import annotations

import asyncio
import binascii
import gzip
import hmac
import logging
import os
import socket
import ssl
import stat
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple

from ottla.client.config_definition import is_loopback as is_loopback

_log = logging.getLogger(__name__)

THREADS: Final = 4
"""Pages that are made at a time."""
CONNECTIONS: Final = 64
"""Connections at a time; one more takes the place of the oldest."""
CLIENT_TIMEOUT_S: Final = 5.0
"""How long a client may take to ask, and to read its page."""
STOP_TIMEOUT_S: Final = 5.0
ACCEPT_BACKOFF_S: Final = 0.1
"""The pause after a connection that could not be accepted: there are too many open files."""
_MOST_HEAD_BYTES: Final = 16 << 10
_LEAST_TOKEN: Final = 16
_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP


class Page(NamedTuple):
    """An answer."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


class PagesRefused(ValueError):
    """Pages cannot be served as asked; the message is one line that says what to change, without secrets."""


@dataclass(frozen=True, slots=True)
class PageAccess:
    """The login and the encryption of pages: without a token all may read them, without a file in clear."""

    certificate: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def context(self) -> ssl.SSLContext | None:
        """Return the context of TLS, of the PEM file as it is now. Raises PagesRefused."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, password=self.key_password or "")
        except OSError as error:  # ssl.SSLError is one
            why = "a certificate and its key in PEM, whose password is given"
            raise PagesRefused(
                f"{self.certificate} does not hold {why} ({error.strerror or error})"
            ) from None
        return context

    def admits(self, fields: Iterable[str]) -> bool:
        """Whether the header fields of a request show the token: as Bearer, or as the password of Basic."""
        if self.token is None:
            return True
        shown = [
            line.partition(":")[2].strip() for line in fields if line.lower().startswith("authorization:")
        ]
        return len(shown) == 1 and hmac.compare_digest(_token_in(shown[0]).encode(), self.token.encode())


def page_access(
    host: str,
    *,
    certificate: str | None = None,
    key_password: str | None = None,
    token_file: str | None = None,
    is_open: bool = False,
) -> PageAccess:
    """Return the access to pages at `host`, of a PEM file with certificate and key and of a token's file.

    Raises PagesRefused for an address that other machines reach without both, unless it `is_open` by intent.
    """
    if not (is_open or is_loopback(host) or (certificate and token_file)):
        raise PagesRefused(
            f"pages at {host} can be read from other machines: they need TLS and a token, or 127.0.0.1"
        )
    token = None if token_file is None else _token_of(Path(token_file))
    access = PageAccess(None if certificate is None else Path(certificate), key_password, token)
    access.context()
    return access


def _token_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4_096).decode("ascii", "replace").strip()
    except OSError as error:
        raise PagesRefused(f"{path}: {error.strerror}") from None
    if mode & _OTHERS:
        shown = f"{stat.S_IMODE(mode):04o}"
        raise PagesRefused(f"{path} can be read or written by others (mode {shown}): chmod 600 it")
    if len(token) < _LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise PagesRefused(f"{path} does not hold a token of {_LEAST_TOKEN} letters or more, without spaces")
    return token


def _token_in(authorization: str) -> str:
    scheme, _, shown = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return b64decode(shown.strip(), validate=True).decode("latin-1").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


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
        access: PageAccess | None = None,
    ) -> None:
        """Bind the address; port 0 takes a free one. Raises OSError when it cannot be bound.

        `name` is that of its threads, and what its log lines say is served.
        """
        self._answer = answer
        self._access = access or PageAccess()
        self._context = self._access.context()
        self._name = name
        self._client_timeout_s = client_timeout_s
        self._socket = _bound(host, port)
        self._connections: dict[asyncio.Task[None], None] = {}
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

    @property
    def scheme(self) -> str:
        """The scheme of its addresses: http or https."""
        return "http" if self._context is None else "https"

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
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(self._accept(tasks))
            await self._stopping.wait()
            for task in (accepting, *self._connections):
                task.cancel()

    async def _accept(self, tasks: asyncio.TaskGroup) -> None:
        self._socket.setblocking(False)
        with self._socket:
            while True:
                try:
                    plug, _ = await self._loop.sock_accept(self._socket)
                except OSError as error:
                    facts = {"server": self._name, "error": str(error)}
                    _log.warning("no connection is accepted", extra=facts)
                    await asyncio.sleep(ACCEPT_BACKOFF_S)
                    continue
                if len(self._connections) >= CONNECTIONS:
                    next(iter(self._connections)).cancel()
                    del self._connections[next(iter(self._connections))]
                task = tasks.create_task(self._connected(plug))
                self._connections[task] = None
                task.add_done_callback(partial(self._ended, plug))

    def _ended(self, plug: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        plug.close()  # a task that is cancelled before its first step has not done it

    async def _connected(self, plug: socket.socket) -> None:
        """Serve a connection; a handshake of TLS that stops half way is one of those that are counted."""
        transport = None
        reader = asyncio.StreamReader(_MOST_HEAD_BYTES, self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        context = None if self._context is None else self._present_context(self._context)
        try:
            async with asyncio.timeout(self._client_timeout_s):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, plug, ssl=context)
            await self._answer_one(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            facts = {"server": self._name, "client": _peer(transport), "reason": str(error)}
            _log.debug("a page is not sent", extra=facts)
        finally:
            if transport is not None:
                transport.abort()

    def _present_context(self, earlier: ssl.SSLContext) -> ssl.SSLContext:
        """Return the context of the certificate as it is; the one before while the file cannot be used."""
        try:
            self._context = self._access.context() or earlier
        except PagesRefused as error:
            facts = {"server": self._name, "error": str(error)}
            _log.warning("the certificate stays as it was", extra=facts)
        return self._context or earlier

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
        if not self._access.admits(fields):
            ways = 'WWW-Authenticate: Basic realm="ottla", charset="UTF-8"\r\nWWW-Authenticate: Bearer\r\n'
            return _http(HTTPStatus.UNAUTHORIZED, "text/plain", b"a token is needed\n", ways)
        method, _, rest = request.partition(" ")
        if method != "GET":
            return _http(HTTPStatus.NOT_IMPLEMENTED, "text/plain", b"only GET is served\n")
        path = rest.partition(" ")[0].partition("?")[0]
        try:
            page = self._answer(path)
        except Exception as error:
            facts = {"server": self._name, "path": path, "error": f"{type(error).__name__}: {error}"}
            _log.warning("a page could not be made", extra=facts)
            return _http(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"the page could not be made\n")
        if any(field.lower().startswith("accept-encoding:") and "gzip" in field for field in fields):
            body = gzip.compress(page.body, compresslevel=1)
            return _http(page.status, page.content_type, body, "Content-Encoding: gzip\r\n")
        return _http(page.status, page.content_type, page.body)


def _peer(transport: asyncio.Transport | None) -> object:
    return None if transport is None else transport.get_extra_info("peername")


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
