from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from ottla.client.metrics import Description, Metrics, Sample, average, counter, gauge, total
from ottla.client.metrics.opentelemetry import OpenTelemetryMetrics
from ottla.client.metrics.prometheus import PrometheusMetrics


@dataclass(slots=True)
class OfTopic(Metrics):
    sent_total: int = counter("Sent.")


@dataclass(slots=True)
class Example(Metrics):
    prefix = "example"
    derived: ClassVar = {"waited_avg": "Waited on average."}

    sent_total: int = counter("Sent.")
    waited_total_ms: float = total("Waited.")
    size_max: float = gauge("Largest.")
    topics: dict[str, OfTopic] = field(default_factory=dict)

    @property
    def waited_avg(self) -> float:
        return average(self.waited_total_ms, self.sent_total)

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        return (*cls.descriptions(), *OfTopic.descriptions(("topic",)))

    def samples(self) -> Any:
        yield from self.tagged({})
        for name, each in self.topics.items():
            yield from each.tagged({"topic": name})


@pytest.fixture
def example() -> Example:
    return Example(sent_total=4, waited_total_ms=10.0, size_max=7, topics={"t": OfTopic(3), "u": OfTopic(1)})


def test_a_snapshot_holds_everything(example: Example) -> None:
    assert example.snapshot() == {
        "sent_total": 4,
        "waited_total_ms": 10.0,
        "size_max": 7,
        "waited_avg": 2.5,
        "topic_sent_total": {"t": 3, "u": 1},
    }


def test_samples_say_what_they_are(example: Example) -> None:
    first, *_, last = example.samples()

    assert first == Sample(Description("sent_total", "counter", "Sent."), {}, 4)
    assert last == Sample(Description("sent_total", "counter", "Sent.", ("topic",)), {"topic": "u"}, 1)


def test_the_average_of_nothing_is_zero() -> None:
    assert Example().waited_avg == 0.0


def test_prometheus_shows_several_clients_of_a_process(example: Example) -> None:
    registry = CollectorRegistry(auto_describe=True)
    exporter = PrometheusMetrics(registry)
    exporter.add(example, client_id="one")
    exporter.add(Example(sent_total=9), client_id="two")

    page = generate_latest(registry).decode()

    assert "# TYPE kafka_example_sent_total counter" in page
    assert 'kafka_example_sent_total{client_id="one"} 4.0' in page
    assert 'kafka_example_sent_total{client_id="two"} 9.0' in page
    assert 'kafka_example_topic_sent_total{client_id="one",topic="u"} 1.0' in page
    assert 'kafka_example_waited_avg{client_id="one"} 2.5' in page
    assert page.count("# TYPE kafka_example_sent_total counter") == 1


def test_prometheus_forgets_a_client_that_is_removed(example: Example) -> None:
    registry = CollectorRegistry()
    exporter = PrometheusMetrics(registry)
    exporter.add(example)

    exporter.remove(example)

    assert generate_latest(registry) == b""
    exporter.close()
    PrometheusMetrics(registry)


def test_opentelemetry_reads_values_as_they_are(example: Example) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    exporter = OpenTelemetryMetrics(provider.get_meter("test"))
    exporter.add(example, {"client_id": "one"})
    exporter.add(Example(), {"client_id": "two"})
    example.sent_total += 1

    seen = points(reader)

    assert seen["kafka.example.sent_total"] == {("one", ""): 5, ("two", ""): 0}
    assert seen["kafka.example.topic.sent_total"] == {("one", "t"): 3, ("one", "u"): 1}
    assert seen["kafka.example.size_max"] == {("one", ""): 7, ("two", ""): 0}
    exporter.remove(example)
    assert points(reader)["kafka.example.sent_total"] == {("two", ""): 0}
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, str], float]]:
    data: Any = reader.get_metrics_data()
    return {
        metric.name: {
            (point.attributes["client_id"], point.attributes.get("topic", "")): point.value
            for point in metric.data.data_points
        }
        for of_resource in data.resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
    }
