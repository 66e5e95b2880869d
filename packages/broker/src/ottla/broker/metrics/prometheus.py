"""The Prometheus endpoint: the registry under the names that Kafka dashboards already use.

`kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec,topic=t` becomes
`kafka_server_brokertopicmetrics_messagesin_total{topic="t"}`, as Prometheus' JMX exporter
writes it with its usual Kafka rules.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

from ottla.broker.metrics.catalogue import Kind, meaning_of
from ottla.broker.metrics.registry import HistogramCounts, MetricName
from ottla.broker.metrics.snapshot import Snapshot, Snapshots

QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
_TYPES: Final[Mapping[Kind, str]] = {"meter": "counter", "gauge": "gauge", "histogram": "summary"}
_NOT_A_NAME: Final = re.compile(r"[^a-z0-9_]")


def prometheus_name(name: MetricName) -> str:
    """Return a metric's Kafka name in the letters that Prometheus allows, without a suffix."""
    short = name.name.removesuffix("PerSec")
    return _NOT_A_NAME.sub("_", f"{name.group}_{name.type}_{short}".lower())


class KafkaCollector(Collector):
    """Renders a new snapshot whenever Prometheus scrapes; it touches no live metric."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for name, kind, value in self._snapshot():
            title = prometheus_name(name)
            family = families.get(title)
            if family is None:
                family = families[title] = Family(title, _about(name), _TYPES[kind])
            if family.type == _TYPES[kind]:
                _add_samples(family, title, dict(name.tags), value)
        return iter(families.values())


def _about(name: MetricName) -> str:
    return f"{meaning_of(name)} ({name._replace(tags=())})"


def _add_samples(family: Family, title: str, tags: dict[str, str], value: float | HistogramCounts) -> None:
    if isinstance(value, HistogramCounts):
        _add_summary(family, title, tags, value)
    else:
        family.add_sample(f"{title}_total" if family.type == "counter" else title, tags, value)


def _add_summary(family: Family, title: str, tags: dict[str, str], counts: HistogramCounts) -> None:
    for fraction in QUANTILES:
        family.add_sample(title, {**tags, "quantile": str(fraction)}, counts.quantile(fraction))
    family.add_sample(f"{title}_count", tags, counts.count)
    family.add_sample(f"{title}_sum", tags, counts.total)


@asynccontextmanager
async def prometheus_endpoint(snapshots: Snapshots, host: str, port: int) -> AsyncIterator[int]:
    """Serve `/metrics` on a thread of its own while the context lasts; gives the bound port.

    `snapshots.run()` must run on the loop. Port 0 takes a free port. Raises OSError when the address cannot
    be bound.
    """
    registry = CollectorRegistry()
    registry.register(KafkaCollector(snapshots.take))
    server, thread = start_http_server(port, host, registry)
    try:
        yield int(server.server_port)
    finally:
        # On a thread: the server looks for its end only every half second.
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(timeout=5)
