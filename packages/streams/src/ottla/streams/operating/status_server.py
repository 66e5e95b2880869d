"""An HTTP server for health, metrics and status, with a bound on threads and on the time a client takes.

It runs on threads, and asks the event loop for each page. So a slow client costs the loop nothing, and a loop
that is blocked is told from a process that is gone: `/health` says so after `ANSWER_TIMEOUT_S`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ottla.streams.errors import StreamsError

log = logging.getLogger(__name__)

THREADS: Final = 4
WAITING: Final = 16
"""Connections that may wait for a thread; one more is closed."""
READ_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 2.0
DEFAULT_PORT: Final = 9465


class Page(NamedTuple):
    """An answer."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


Pages = Mapping[str, Callable[[], Page]]


def json_page(value: object, status: HTTPStatus = HTTPStatus.OK) -> Page:
    """Return a page of JSON."""
    return Page(json.dumps(value, indent=2, default=str).encode() + b"\n", status=status)


class StatusNotServed(StreamsError):
    """The address of the status page is in use, or is none of this machine."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(
            f"the status page cannot be served at {host}:{port}: {cause.strerror}; give another address, by "
            "--status or status=, or port 0 for a free one"
        )


class StatusServer:
    """Serves pages by path, within `async with`; the functions are called on the event loop."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """Port 0 takes a free one. Entering raises StatusNotServed."""
        self._address = (host, port)
        self._pages = pages
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its address for clients."""
        assert self._server is not None, "the server is not running"
        host, port = self._server.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def ask(path: str) -> Page:
            asked = asyncio.run_coroutine_threadsafe(_made(self._pages[path]), loop)
            try:
                return asked.result(ANSWER_TIMEOUT_S)
            except concurrent.futures.TimeoutError:
                asked.cancel()
                return _blocked()

        try:
            self._server = server = _Server(*self._address, frozenset(self._pages), ask)
        except OSError as error:
            raise StatusNotServed(*self._address, error) from error
        self._thread = threading.Thread(target=server.serve_forever, daemon=True, name="streams-status")
        self._thread.start()
        log.info("status is served", extra={"url": self.url})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._server.threads.shutdown(wait=False, cancel_futures=True)
        self._thread.join(timeout=5)


async def _made(make: Callable[[], Page]) -> Page:
    return make()


def _blocked() -> Page:
    reason = f"the event loop did not answer within {ANSWER_TIMEOUT_S:g} s: a handler blocks it"
    return json_page({"healthy": False, "reasons": [reason]}, HTTPStatus.SERVICE_UNAVAILABLE)


class _Server(HTTPServer):
    def __init__(self, host: str, port: int, paths: frozenset[str], ask: Callable[[str], Page]) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        self.paths = paths
        self.ask = ask
        self.threads = concurrent.futures.ThreadPoolExecutor(THREADS, "streams-status")
        self._places = threading.BoundedSemaphore(THREADS + WAITING)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks for the host's name, which can take seconds where no name server answers.
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hand a connection to a thread, or close it when too many wait."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.threads.submit(self._serve, request, client_address)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError as error:
            log.debug("status is not sent", extra={"client": client_address, "reason": str(error)})
        except Exception:
            log.exception("status is not served", extra={"client": client_address})
        finally:
            self._places.release()
            self.shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = READ_TIMEOUT_S
    """For each read and write; `handle_one_request` bounds all reads of a request together."""

    def handle_one_request(self) -> None:
        """Read a request within `READ_TIMEOUT_S`, however slowly its bytes come, and answer it."""
        # The end of the input ends a read that waits, also one that gets a byte every second.
        ends = threading.Timer(READ_TIMEOUT_S, self._end_input)
        ends.daemon = True
        ends.start()
        try:
            super().handle_one_request()
        finally:
            ends.cancel()
        self.close_connection = True

    def _end_input(self) -> None:
        try:
            self.connection.shutdown(socket.SHUT_RD)
        except OSError:
            return  # it is closed already

    def do_GET(self) -> None:
        """Answer with the page of the path, or name the paths there are."""
        path = self.path.partition("?")[0].rstrip("/") or "/status"
        if path in self.server.paths:
            page = self._page(path)
        else:
            known = ", ".join(sorted(self.server.paths))
            page = json_page({"error": f"no such page; there are {known}"}, HTTPStatus.NOT_FOUND)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def _page(self, path: str) -> Page:
        try:
            return self.server.ask(path)
        except Exception as error:
            log.warning("a page of status could not be made: %s", error)
            return json_page({"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002 - the name it has there
        """Say nothing: a look every second is no news."""
