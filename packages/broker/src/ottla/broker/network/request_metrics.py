"""Times and counts of requests, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.metrics import Histogram, Meter, Metrics
    from ottla.broker.requests.fast_path import FastPath

_GROUP = "kafka.network"
_TYPE = "RequestMetrics"


def request_name(api_key: int) -> str:
    """Name an API as Kafka's metrics do: PRODUCE is `Produce`, LIST_OFFSETS is `ListOffsets`."""
    return "".join(part.capitalize() for part in ApiKey(api_key).name.split("_"))


@dataclass(slots=True)
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
