"""An HTTP server for one page, with a bound on threads and on the time a client takes to ask."""

from __future__ import annotations

import gzip
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

_log = logging.getLogger(__name__)

THREADS: Final = 4
WAITING: Final = 16
"""Connections that may wait for a thread; one more is closed."""
READ_TIMEOUT_S: Final = 5.0


class PageServer:
    """Serves what `page` returns to every GET, on at most four threads."""

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        """Bind the address. Raises OSError when it cannot be bound."""
        self._server = _Server(host, port, page)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics")

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
    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = found[0]
        self.page = page
        self.threads = ThreadPoolExecutor(THREADS, "metrics")
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
            _log.debug("metrics are not sent", extra={"client": client_address, "reason": str(error)})
        except Exception:
            _log.exception("metrics are not served", extra={"client": client_address})
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
        """Answer with the page, or say that the broker does not make one."""
        try:
            page = self.server.page()
        except Exception as error:
            _log.warning("there is no page of metrics: %s", error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the metrics could not be read")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
        if "gzip" in (self.headers.get("Accept-Encoding") or ""):
            page = gzip.compress(page, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002 - the name it has there
        """Say nothing: a scrape every few seconds is no news."""
