"""Export metrics of clients to Prometheus. Needs `pip install ottla-client[prometheus]`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ottla.client.metrics import Metrics, Sample, Source


class PrometheusMetrics(Collector):
    """Registers the metrics of clients with a registry, under Kafka's names.

        exporter = PrometheusMetrics()
        exporter.add(producer.metrics, client_id="shop")

    `record_send_total` of a producer becomes `kafka_producer_record_send_total`, and that of a topic
    `kafka_producer_topic_record_send_total`. One object serves all clients of a process. Values are read
    when the registry collects; nothing runs in between.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._sources: list[Source] = []
        self._registry = registry
        registry.register(self)

    def add(self, metrics: Metrics, **labels: str) -> None:
        """Export the metrics of a client; labels distinguish it from other clients."""
        self._sources.append(Source(metrics, labels))

    def remove(self, metrics: Metrics) -> None:
        """Stop exporting the metrics of a client."""
        self._sources = [source for source in self._sources if source.metrics is not metrics]

    def close(self) -> None:
        """Unregister from the registry."""
        self._registry.unregister(self)

    def describe(self) -> list[Metric]:
        """Return no metrics: they depend on the clients added."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        families: dict[str, Metric] = {}
        for source in tuple(self._sources):
            for sample in source.samples():
                name = "_".join(("kafka", source.metrics.prefix, *sample.description.path))
                family = families.setdefault(name, _family(name, sample))
                family.add_sample(_sample_name(name, sample), dict(sample.tags), sample.value)
        yield from families.values()


def _family(name: str, sample: Sample) -> Metric:
    kind = CounterMetricFamily if sample.description.kind == "counter" else GaugeMetricFamily
    return kind(name, sample.description.meaning, labels=tuple(sample.tags))


def _sample_name(name: str, sample: Sample) -> str:
    counts = sample.description.kind == "counter"
    return f"{name.removesuffix('_total')}_total" if counts else name
