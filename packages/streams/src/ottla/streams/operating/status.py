"""The pages of an app for operators: health, metrics, and the status that `ottla streams top` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from ottla.client.metrics import Metrics
from ottla.client.page_server import Page
from ottla.protocol.topics import TopicPartition
from ottla.streams.handlers.context import key_hash
from ottla.streams.operating.health import Health
from ottla.streams.operating.observer import PartitionState, ProcessorObserver
from ottla.streams.operating.status_server import Pages, json_page
from ottla.streams.seams import Work

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


STATUS_VERSION = 1

COUNTERS = (
    "record_handled_total",
    "handler_error_total",
    "retry_total",
    "skip_total",
    "dead_letter_total",
    "dedupe_hit_total",
    "late_total",
    "keyless_total",
    "valueless_total",
    "commit_total",
    "commit_error_total",
)
GAUGES = (
    "lanes",
    "in_flight",
    "oldest_in_flight_ms",
    "buffered_records",
    "buffered_bytes",
    "buffered_output_bytes",
    "parked",
    "paused_partitions",
    "commit_metadata_bytes",
    "handler_latency_avg",
    "handler_latency_max",
)

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_NO_PROMETHEUS = b"metrics need prometheus-client: python -m pip install ottla-client[prometheus]\n"


def processor_status(
    name: str, group_id: str, observer: ProcessorObserver, health: Health, *, now_ms: float
) -> dict[str, Any]:
    """Return the status of one processor; `now_ms` is its monotonic clock."""
    metrics = observer.metrics
    lags, running = observer.metrics.sizes.lags(), observer.running()
    return {
        "name": name,
        "group": group_id,
        "healthy": health.is_healthy,
        "reasons": list(health.reasons),
        **{name: getattr(metrics, name) for name in (*COUNTERS, *GAUGES)},
        "oldest": _work(observer.oldest(), now_ms),
        "retrying": [_work(work, now_ms) for work in observer.retrying()],
        "last_failure": _failure(observer.last_failure, now_ms),
        "dead_letter_topic": observer.dead_letter_topic,
        "partitions": [
            _partition(partition, state, lags.get(partition), running.get(partition, []), now_ms)
            for partition, state in sorted(observer.partitions.items())
        ],
    }


def app_status(name: str, now_ms: float, processors: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the status of an app; from `monotonic_ms` a viewer computes rates."""
    found = list(processors)
    return {
        "version": STATUS_VERSION,
        "app": name,
        "monotonic_ms": round(now_ms),
        "healthy": all(processor["healthy"] for processor in found),
        "processors": found,
    }


def _partition(
    partition: TopicPartition, state: PartitionState, lag: int | None, running: list[Work], now_ms: float
) -> dict[str, Any]:
    oldest = min(running, key=lambda work: work.started_ms, default=None)
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "offset": state.offset,
        "lag": lag,
        "handled": state.handled,
        "failed": state.failed,
        "in_flight": len(running),
        "metadata_bytes": state.metadata_bytes,
        "paused": state.is_paused,
        "oldest": _work(oldest, now_ms),
    }


def _failure(failure: tuple[str, float] | None, now_ms: float) -> dict[str, Any] | None:
    return None if failure is None else {"text": failure[0], "age_ms": round(max(0.0, now_ms - failure[1]))}


def _work(work: Work | None, now_ms: float) -> dict[str, Any] | None:
    if work is None:
        return None
    return {
        "topic": work.partition.topic,
        "partition": work.partition.partition,
        "offset": work.offset,
        "key_hash": key_hash(work.record.key),
        "attempt": work.attempt,
        "age_ms": round(max(0.0, now_ms - work.started_ms)),
    }


class WatchedProcessor(Protocol):
    """A processor as its status is made."""

    @property
    def name(self) -> str:
        """The name of its handler."""

    @property
    def group_id(self) -> str:
        """Its group."""

    @property
    def observer(self) -> ProcessorObserver:
        """Its observer."""

    def client_metrics(self) -> Sequence[Metrics]:
        """The metrics of its consumer, and of its producer if it has one."""

    def health(self) -> Health:
        """Its health."""


@dataclass(slots=True)
class AppPages:
    """Makes the pages of an app; call it on the event loop."""

    name: str
    processors: Callable[[], Sequence[WatchedProcessor]]
    now_ms: Callable[[], float]
    _registry: tuple[tuple[int, ...], CollectorRegistry] | None = field(default=None, repr=False)

    def pages(self) -> Pages:
        """Return the pages by path."""
        return {"/status": self.status, "/health": self.health, "/metrics": self.metrics}

    def document(self) -> dict[str, Any]:
        """Return the status as JSON objects."""
        now_ms = self.now_ms()
        return app_status(
            self.name,
            now_ms,
            [
                processor_status(
                    processor.name, processor.group_id, processor.observer, processor.health(), now_ms=now_ms
                )
                for processor in self.processors()
            ],
        )

    def status(self) -> Page:
        """Return everything."""
        return json_page(self.document())

    def health(self) -> Page:
        """Return 200, or 503 with reasons."""
        reasons = [
            f"{processor.name}: {reason}"
            for processor in self.processors()
            for reason in processor.health().reasons
        ]
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return json_page({"healthy": not reasons, "reasons": reasons}, status)

    def metrics(self) -> Page:
        """Return the metrics in Prometheus' format."""
        try:
            from prometheus_client import generate_latest
        except ImportError:
            return Page(_NO_PROMETHEUS, "text/plain; charset=utf-8", HTTPStatus.NOT_IMPLEMENTED)
        return Page(generate_latest(self._collected()), PROMETHEUS)

    def _collected(self) -> CollectorRegistry:
        """Return a registry of the processors there are now, with their handler and group as labels."""
        from prometheus_client import CollectorRegistry

        from ottla.client.metrics.prometheus import PrometheusMetrics

        processors = self.processors()
        now = tuple(id(processor) for processor in processors)
        if self._registry is None or self._registry[0] != now:
            registry = CollectorRegistry()
            exporter = PrometheusMetrics(registry)
            for processor in processors:
                for metrics in (processor.observer.metrics, *processor.client_metrics()):
                    exporter.add(metrics, handler=processor.name, group=processor.group_id)
            self._registry = (now, registry)
        return self._registry[1]
