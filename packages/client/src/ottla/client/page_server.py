"""An HTTP server for a process's pages, with a bound on threads and on the time a client takes to ask."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final, NamedTuple

_log = logging.getLogger(__name__)

THREADS: Final = 4
WAITING: Final = 16
"""Connections that may wait for a thread; one more is closed."""
READ_TIMEOUT_S: Final = 5.0


class Page(NamedTuple):
    """An answer."""

    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


class PageServer:
    """Serves what `answer` returns for the path of each GET, on at most four threads.

    An `answer` that raises becomes a 500 without details, and one line of the log.
    """

    def __init__(self, host: str, port: int, answer: Callable[[str], Page], name: str) -> None:
        """Bind the address; port 0 takes a free one. Raises OSError when it cannot be bound.

        `name` is that of its threads, and what its log lines say is served.
        """
        self._server = _Server(host, port, answer, name)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name=name)

    @property
    def host(self) -> str:
        """The bound address."""
        return str(self._server.server_address[0])

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self._server.server_port)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and end the threads; blocks until the server has noticed, half a second at most."""
        self._server.shutdown()
        self._server.server_close()
        self._server.threads.shutdown(wait=False, cancel_futures=True)
        self._thread.join(timeout=5)


class _Server(HTTPServer):
    def __init__(self, host: str, port: int, answer: Callable[[str], Page], name: str) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        self.answer = answer
        self.name = name
        self.threads = ThreadPoolExecutor(THREADS, name)
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
            facts = {"server": self.name, "client": client_address, "reason": str(error)}
            _log.debug("a page is not sent", extra=facts)
        except Exception:
            _log.exception("a page is not served", extra={"server": self.name, "client": client_address})
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
        """Answer with the page of the path, compressed for clients that accept it."""
        try:
            page = self.server.answer(self.path.partition("?")[0])
        except Exception as error:
            _log.warning("a page of %s could not be made: %s", self.server.name, error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the page could not be made")
            return
        body = page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if "gzip" in (self.headers.get("Accept-Encoding") or ""):
            body = gzip.compress(body, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002 - the name it has there
        """Log nothing: a page is asked for every second."""
