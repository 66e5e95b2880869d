"""Pushed metrics handed on to a collector of OpenTelemetry, by OTLP over HTTP.

Clients are answered before: a collector that is slow, or away, holds no push. What waits for it is bounded in
bytes; beyond them the oldest pushes are dropped, and counted. A request that fails is sent again as the
specification of OTLP has it, with growing pauses, for at most `GIVE_UP_AFTER_MS`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from ottla.broker.config.metrics import headers_in
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    import httpx2

    from ottla.broker.config.metrics import MetricsSettings
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment

_log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""How long a collector may take to connect, and to answer: the default of OpenTelemetry's exporters."""
MOST_REQUEST_BYTES: Final = 1 << 20
"""Pushes that wait are sent together up to this size; a larger push is a request of its own."""
MOST_ANSWER_BYTES: Final = 64 << 10
FIRST_PAUSE_MS: Final = 1_000.0
LONGEST_PAUSE_MS: Final = 30_000.0
GIVE_UP_AFTER_MS: Final = 300_000.0
RETRIABLE: Final = frozenset({429, 502, 503, 504})
"""The answers after which a request is sent again (OTLP 1.x); after any other error it is dropped."""
_MOST_REASON: Final = 200


class Outbox:
    """The pushes that wait for the collector. Pure."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._waiting: deque[bytes] = deque()

    def offer(self, push: bytes) -> int:
        """Add a push, and return how many were dropped: the oldest first, or this one if it is too large."""
        if len(push) > self._max_bytes:
            return 1
        self._waiting.append(push)
        self.bytes += len(push)
        dropped = 0
        while self.bytes > self._max_bytes:
            self.bytes -= len(self._waiting.popleft())
            dropped += 1
        return dropped

    def take(self, most_bytes: int = MOST_REQUEST_BYTES) -> list[bytes]:
        """Take the oldest pushes, at least one if any waits."""
        taken: list[bytes] = []
        size = 0
        while self._waiting and (not taken or size + len(self._waiting[0]) <= most_bytes):
            size += len(self._waiting[0])
            taken.append(self._waiting.popleft())
        self.bytes -= size
        return taken


@frozen
class Answer:
    """A collector's answer: `status` is None where there was none, `reason` is empty where it took all."""

    status: int | None
    reason: str = ""
    retry_after_ms: float | None = None
    rejected_points: int = 0

    @property
    def is_taken(self) -> bool:
        """Whether the collector has the metrics, if not all points of them."""
        return self.status is not None and 200 <= self.status < 300


def pause_ms(
    answer: Answer, tries: int, elapsed_ms: float, chance: float, first_ms: float = FIRST_PAUSE_MS
) -> float | None:
    """Return the time until a request that failed `tries` times is sent again; None to drop it.

    `chance` is from 0 to 1. A collector that names a time is left alone for that.
    """
    if answer.status is not None and answer.status not in RETRIABLE:
        return None
    pause = min(first_ms * 2 ** min(tries - 1, 16), LONGEST_PAUSE_MS) * (0.5 + chance / 2)
    if answer.retry_after_ms is not None:
        pause = max(pause, answer.retry_after_ms)
    return pause if elapsed_ms + pause <= GIVE_UP_AFTER_MS else None


class Collector(Protocol):
    """Takes one request of OTLP."""

    async def post(self, body: bytes) -> Answer:
        """Send a request, and return the answer; it never raises for a collector that fails."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[Collector]]


class OtlpExport:
    """Hands pushes on while it runs. What waits when the broker stops is not sent."""

    def __init__(
        self,
        connect: Connect,
        environment: Environment,
        metrics: Metrics,
        *,
        max_bytes: int,
        first_pause_ms: float = FIRST_PAUSE_MS,
    ) -> None:
        self._connect = connect
        self._first_pause_ms = first_pause_ms
        self._clock, self._random = environment.clock, environment.random
        self._outbox = Outbox(max_bytes)
        self._arrived = asyncio.Event()
        self._fails = False
        meters = [
            metrics.meter("ottla.broker", "client-metrics", f"otlp-{name}")
            for name in ("sent-pushes", "dropped-pushes", "failed-requests", "rejected-points")
        ]
        self._sent, self._dropped, self._failed, self._rejected = meters
        metrics.gauge("ottla.broker", "client-metrics", "otlp-queue-bytes", lambda: float(self._outbox.bytes))

    def offer(self, push: bytes) -> None:
        """Take a push: a serialized MetricsData. It never waits."""
        self._dropped.mark(self._outbox.offer(push))
        self._arrived.set()

    async def run(self) -> None:
        """Send what was offered, in its order, until cancelled."""
        async with self._connect() as collector:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while pushes := self._outbox.take():
                    is_taken = await self._deliver(collector, b"".join(pushes))
                    (self._sent if is_taken else self._dropped).mark(len(pushes))

    async def _deliver(self, collector: Collector, body: bytes) -> bool:
        """Send a request until it is taken or has to be dropped. Messages of protobuf join by their bytes."""
        began_ms, tries = self._clock.monotonic_ms(), 0
        while True:
            answer = await collector.post(body)
            tries += 1
            self._note(answer)
            if answer.is_taken:
                return True
            elapsed_ms = self._clock.monotonic_ms() - began_ms
            pause = pause_ms(answer, tries, elapsed_ms, self._random.random(), self._first_pause_ms)
            if pause is None:
                return False
            await asyncio.sleep(pause / 1_000)

    def _note(self, answer: Answer) -> None:
        """Count an answer, and log the first failure, and the first success behind one."""
        self._rejected.mark(answer.rejected_points)
        if not answer.is_taken:
            self._failed.mark()
        has_failed = not answer.is_taken or answer.rejected_points > 0
        if has_failed and not self._fails:
            facts = {"status": answer.status, "reason": answer.reason}
            _log.warning("metrics of clients not taken by the collector", extra=facts)
        elif self._fails and not has_failed:
            _log.info("metrics of clients are taken by the collector again")
        self._fails = has_failed


# ---- the collector


class HttpCollector:
    """A collector at a URL."""

    def __init__(self, config: MetricsSettings) -> None:
        self._config = config
        self._client: httpx2.AsyncClient

    async def __aenter__(self) -> HttpCollector:
        # The import and the system's authorities take longer than the loop may stand.
        self._client = await asyncio.to_thread(_client, self._config)
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def post(self, body: bytes) -> Answer:
        """Send a request; a collector that cannot be reached, or is silent, is an answer without a status."""
        import httpx2

        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                return await self._post(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            return Answer(None, _one_line(str(error)) or type(error).__name__)

    async def _post(self, body: bytes) -> Answer:
        assert self._config.telemetry_otlp_endpoint is not None
        async with self._client.stream(
            "POST", self._config.telemetry_otlp_endpoint, content=body
        ) as response:
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MOST_ANSWER_BYTES:
                    break
            return answer_of(response.status_code, response.headers.get("retry-after"), bytes(content))


def answer_of(status: int, retry_after: str | None, content: bytes) -> Answer:
    """Read an answer; a content that is none of OTLP says nothing."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    if not 200 <= status < 300:
        text = _one_line(content.decode("utf-8", "replace"))
        return Answer(status, text, _retry_after_ms(retry_after))
    found = ExportMetricsServiceResponse()
    try:
        found.ParseFromString(content)
    except DecodeError:
        return Answer(status)
    partial = found.partial_success
    return Answer(
        status, _one_line(partial.error_message), rejected_points=max(partial.rejected_data_points, 0)
    )


def _retry_after_ms(text: str | None) -> float | None:
    """Return the seconds that a header names; a date, which OTLP has none of, counts as none."""
    return float(text) * 1_000 if text is not None and text.isdecimal() and len(text) < 10 else None


def _client(config: MetricsSettings) -> httpx2.AsyncClient:
    import httpx2

    url = config.telemetry_otlp_endpoint or ""
    is_in_clear = bool(config.telemetry_otlp_headers) and urlsplit(url).scheme == "http"
    return httpx2.AsyncClient(
        verify=trusting(config), follow_redirects=False, timeout=TIMEOUT_S,
        trust_env=not is_in_clear,  # a proxy would read the secret
        headers={
            "content-type": "application/x-protobuf", "accept-encoding": "identity", "user-agent": "ottla",
            **headers_in(config.telemetry_otlp_headers),
        },
        limits=httpx2.Limits(max_connections=1),
    )  # fmt: skip


def trusting(config: MetricsSettings) -> ssl.SSLContext:
    """Return the context of connections by TLS. Raises OSError for authorities that cannot be read."""
    context = ssl.create_default_context()
    if config.telemetry_otlp_ssl_truststore_location is not None:
        context.load_verify_locations(config.telemetry_otlp_ssl_truststore_location)
    return context


def _one_line(text: str) -> str:
    return " ".join("".join(filter(str.isprintable, text.replace("\n", " "))).split())[:_MOST_REASON]
