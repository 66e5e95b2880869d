"""Times, sizes and counts of requests, under Kafka's names: one by one, and together on the fast paths."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.metrics import Histogram, Meter, Metrics
    from ottla.broker.network.dispatcher import Call
    from ottla.broker.requests.fast_path import FastAnswers, FastPath


FLUSH_AFTER_S: Final = 0.25
"""How long the counts of the fast paths may be ahead of the metrics."""

_GROUP = "kafka.network"
_TYPE = "RequestMetrics"


class RequestTimes:
    """Measures requests; counts of the fast paths reach the metrics with the next flush."""

    def __init__(
        self,
        metrics: RequestMetrics,
        fast_paths: Collection[FastPath],
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`now_s` and `call_later` are the loop's."""
        self.metrics = metrics
        self._fast_paths = fast_paths
        self._now_s = now_s
        self._call_later = call_later
        self._flush_due = False

    # ---- general path

    def measure(self, call: Call) -> None:
        """Count one request that has been answered."""
        context, now_ms = call.context, self._now_s() * 1000
        key, total_ms = int(call.route.api_key), now_ms - context.received_ms
        metrics = self.metrics.of(key)
        self.metrics.requests(key, context.api_version).mark()
        queued_ms = context.begun_ms - context.received_ms
        metrics.request_bytes.update(call.size)
        metrics.total_time_ms.update(total_ms)
        metrics.queue_time_ms.update(queued_ms)
        metrics.remote_time_ms.update(context.remote_ms)
        metrics.local_time_ms.update(max(0.0, total_ms - queued_ms - context.remote_ms))

    # ---- fast paths

    def measure_waited(self, api_key: int, answers: FastAnswers, received_ms: float, begun_ms: float) -> None:
        """Count requests of a fast path that waited for responses, after their effects at `begun_ms`."""
        metrics, count, now_ms = self.metrics.of(api_key), answers.count, self._now_s() * 1000
        metrics.total_time_ms.update(now_ms - received_ms, count)
        metrics.queue_time_ms.update(0.0, count)
        metrics.local_time_ms.update(begun_ms - received_ms, count)
        metrics.remote_time_ms.update(now_ms - begun_ms, count)
        metrics.request_bytes.update(answers.size_in_bytes / count, count)
        self.metrics.requests(api_key, answers.version).mark(count)

    def fast_path_used(self) -> None:
        """Plan a flush of the counts of the fast paths."""
        if not self._flush_due:
            self._flush_due = True
            self._call_later(FLUSH_AFTER_S, self.flush)

    def flush(self) -> None:
        """Bring the metrics up to date with the requests that took a fast path."""
        for fast_path in self._fast_paths:
            self.metrics.take(fast_path)
            fast_path.flush()
        self._flush_due = False


def request_name(api_key: int) -> str:
    """Name an API as Kafka's metrics do: PRODUCE is `Produce`, LIST_OFFSETS is `ListOffsets`."""
    return "".join(part.capitalize() for part in ApiKey(api_key).name.split("_"))


@dataclass(slots=True, eq=False, repr=False)
class ApiMetrics:
    """The metrics of one API."""

    total_time_ms: Histogram
    queue_time_ms: Histogram
    local_time_ms: Histogram
    remote_time_ms: Histogram
    request_bytes: Histogram
    by_version: dict[int, Meter] = field(default_factory=dict)


class RequestMetrics:
    """Makes the metrics of each API on their first use."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._by_key: dict[int, ApiMetrics] = {}
        self.bytes_in = metrics.meter(_GROUP, "Server", "BytesInPerSec")
        self.bytes_out = metrics.meter(_GROUP, "Server", "BytesOutPerSec")

    def of(self, api_key: int) -> ApiMetrics:
        """Return the metrics of one API."""
        found = self._by_key.get(api_key)
        if found is None:
            found = self._by_key[api_key] = self._make(request_name(api_key))
        return found

    def _make(self, request: str) -> ApiMetrics:
        def histogram(name: str) -> Histogram:
            return self._metrics.histogram(_GROUP, _TYPE, name, request=request)

        return ApiMetrics(
            total_time_ms=histogram("TotalTimeMs"),
            queue_time_ms=histogram("RequestQueueTimeMs"),
            local_time_ms=histogram("LocalTimeMs"),
            remote_time_ms=histogram("RemoteTimeMs"),
            request_bytes=histogram("RequestBytes"),
        )

    def requests(self, api_key: int, version: int) -> Meter:
        """Return the count of requests of one version of an API."""
        by_version = self.of(api_key).by_version
        meter = by_version.get(version)
        if meter is None:
            meter = by_version[version] = self._metrics.meter(
                _GROUP, _TYPE, "RequestsPerSec", request=request_name(api_key), version=str(version)
            )
        return meter

    def take(self, fast_path: FastPath) -> None:
        """Move the counts of a fast path here.

        Histograms get them a little later and together: at these rates, updating three of them for every
        request would cost more than answering it.
        """
        if not fast_path.versions:
            return
        metrics, count = self.of(fast_path.api_key), sum(fast_path.versions.values())
        fast_path.times.flush(metrics.total_time_ms, metrics.local_time_ms)
        metrics.queue_time_ms.update(0.0, count)
        metrics.remote_time_ms.update(0.0, count)
        fast_path.sizes.flush(metrics.request_bytes)
        for version, count in fast_path.versions.items():
            self.requests(fast_path.api_key, version).mark(count)
        fast_path.versions.clear()
