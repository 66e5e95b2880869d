"""The pages of the status server: health, metrics and status of all processors of an app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from ottla.client.metrics import Metrics
from ottla.client.page_server import Page
from ottla.streams.operating.health import Health
from ottla.streams.operating.observer import ProcessorObserver
from ottla.streams.operating.status import app_status, processor_status
from ottla.streams.operating.status_server import Pages, json_page

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_NO_PROMETHEUS = b"metrics need prometheus-client: python -m pip install ottla-client[prometheus]\n"


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
