"""The Prometheus endpoint: the registry under the names that Kafka dashboards already use.

`kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_messagesin_total{topic="t"}`, as Prometheus' JMX exporter
writes it with its usual Kafka rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from ottla.broker.metrics.catalogue import meaning_of
from ottla.broker.metrics.registry import Gauge, Histogram, Meter, Metric, MetricName, Metrics

QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_NOT_A_NAME: Final = re.compile(r"[^a-z0-9_]")


def prometheus_name(name: MetricName) -> str:
    """Say a metric's Kafka name in Prometheus' letters, without a suffix."""
    short = name.name.removesuffix("PerSec")
    return _NOT_A_NAME.sub("_", f"{name.group}_{name.type}_{short}".lower())


class KafkaCollector(Collector):
    """Gives the registry's present values whenever Prometheus asks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for name, metric in self._metrics:
            title = prometheus_name(name)
            kind = _kind(metric)
            family = families.get(title)
            if family is None:
                family = families[title] = Family(title, _about(name), kind)
            if family.type == kind:
                _add_samples(family, title, dict(name.tags), metric)
        return iter(families.values())


def _about(name: MetricName) -> str:
    return f"{meaning_of(name)} ({name._replace(tags=())})"


def _kind(metric: Metric) -> str:
    if isinstance(metric, Meter):
        return "counter"
    return "gauge" if isinstance(metric, Gauge) else "summary"


def _add_samples(family: Family, title: str, tags: dict[str, str], metric: Metric) -> None:
    if isinstance(metric, Meter):
        family.add_sample(f"{title}_total", tags, metric.count)
    elif isinstance(metric, Gauge):
        family.add_sample(title, tags, metric.value)
    else:
        _add_summary(family, title, tags, metric)


def _add_summary(family: Family, title: str, tags: dict[str, str], metric: Histogram) -> None:
    for fraction in QUANTILES:
        family.add_sample(title, {**tags, "quantile": str(fraction)}, metric.quantile(fraction))
    family.add_sample(f"{title}_count", tags, metric.count)
    family.add_sample(f"{title}_sum", tags, metric.total)


@contextmanager
def prometheus_endpoint(metrics: Metrics, host: str, port: int) -> Iterator[int]:
    """Serve `/metrics` on a thread of its own while the context lasts; gives the bound port.

    Raises OSError when the address cannot be bound. Port 0 takes a free one.
    """
    registry = CollectorRegistry()
    registry.register(KafkaCollector(metrics))
    server, thread = start_http_server(port, host, registry)
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
