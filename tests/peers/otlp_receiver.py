"""A receiver of OTLP over HTTP, with OpenTelemetry's own messages: a collector that keeps what it is sent."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

PATH = "/v1/metrics"


@dataclass(frozen=True)
class Received:
    """One request: its headers, and each resource's attributes with the names of its metrics."""

    headers: Message
    resources: list[tuple[Mapping[str, str], list[str]]] = field(default_factory=list)


class OtlpReceiver:
    """Listens while it is entered. It answers with `statuses`, one for each request, and then takes all."""

    def __init__(self, *statuses: int, tls: ssl.SSLContext | None = None) -> None:
        self._statuses = list(statuses)
        self._is_secured = tls is not None
        self.received: Queue[Received] = Queue()
        """The requests that were taken."""
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = Thread(target=self._server.serve_forever, name="otlp-receiver")

    @property
    def url(self) -> str:
        """Where metrics are posted."""
        scheme = "https" if self._is_secured else "http"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        """Read a request, and answer it."""
        request = ExportMetricsServiceRequest.FromString(
            asked.rfile.read(int(asked.headers["content-length"]))
        )
        status = self._statuses.pop(0) if self._statuses else 200
        if asked.path != PATH or asked.headers["content-type"] != "application/x-protobuf":
            status = 404
        content = ExportMetricsServiceResponse().SerializeToString() if status == 200 else b"not now"
        if status == 200:
            self.received.put(Received(asked.headers, [_read(one) for one in request.resource_metrics]))
        else:
            self.refused += 1
        asked.send_response(status)
        asked.send_header("content-length", str(len(content)))
        asked.end_headers()
        asked.wfile.write(content)


def _read(of_resource: Any) -> tuple[Mapping[str, str], list[str]]:
    attributes = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    return attributes, [metric.name for scope in of_resource.scope_metrics for metric in scope.metrics]
