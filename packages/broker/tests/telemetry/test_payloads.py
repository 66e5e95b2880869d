"""Payloads of pushed metrics: OpenTelemetry's data as plain values; bombs and nonsense."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from ottla.broker.telemetry.payloads import MOST_ATTRIBUTES, MOST_METRICS, MOST_RESOURCES, MOST_VALUES, read
from ottla.protocol.errors import InvalidRecord, TelemetryTooLarge
from ottla.protocol.records import compress

MAX_BYTES = 1 << 20


def attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def payload(*metrics: Metric) -> bytes:
    resource = Resource(attributes=[attribute("client.rack", "r1")])
    scopes = [ScopeMetrics(metrics=metrics)]
    data = MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=scopes)])
    return bytes(data.SerializeToString())


def gauge(value: float, name: str = "org.apache.kafka.producer.record.send.rate") -> Metric:
    point = NumberDataPoint(as_double=value, attributes=[attribute("topic-name", "t")])
    return Metric(name=name, gauge=Gauge(data_points=[point]))


def counted(value: int, temporality: AggregationTemporality.ValueType) -> Metric:
    points = [NumberDataPoint(as_int=value)]
    total = Sum(data_points=points, aggregation_temporality=temporality)
    return Metric(name="org.apache.kafka.consumer.coordinator.assigned.total", sum=total)


@pytest.mark.parametrize("compression_type", range(5))
def test_values_of_every_compression_are_read(compression_type: int) -> None:
    data = compress(
        compression_type,
        payload(gauge(2.5), counted(3, AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA)),
    )

    rate, total = read(data, compression_type, MAX_BYTES).values

    labels = (("client_rack", "r1"), ("topic_name", "t"))
    assert rate.name == ("kafka.client", "producer", "record.send.rate", labels)
    assert (rate.value, rate.is_delta) == (2.5, False)
    assert total.name == ("kafka.client", "consumer", "coordinator.assigned.total", labels[:1])
    assert (total.value, total.is_delta) == (3.0, True)


def test_a_histogram_is_its_count_and_its_sum() -> None:
    points = [HistogramDataPoint(count=4, sum=9.5)]
    metric = Metric(name="org.apache.kafka.producer.latency", histogram=Histogram(data_points=points))

    values = read(payload(metric), 0, MAX_BYTES).values

    assert [(value.name.name, value.value) for value in values] == [
        ("latency.count", 4.0),
        ("latency.sum", 9.5),
    ]


@pytest.mark.parametrize("compression_type", range(1, 5))
def test_a_bomb_is_too_large(compression_type: int) -> None:
    bomb = compress(compression_type, bytes(64 << 20))
    assert len(bomb) < 4 << 20

    with pytest.raises(TelemetryTooLarge):
        read(bomb, compression_type, MAX_BYTES)


def test_more_values_than_a_push_may_have_are_left_out() -> None:
    points = [NumberDataPoint(as_int=number) for number in range(MOST_VALUES + 10)]
    metric = Metric(name="org.apache.kafka.a.b", gauge=Gauge(data_points=points))

    assert len(read(payload(metric), 0, MAX_BYTES).values) == MOST_VALUES


def test_attributes_that_become_no_labels_are_not_gone_through_for_each_value() -> None:
    """With 60,000 of them 1,000 values would take ten seconds of the processor."""
    attributes = [attribute(f"a{number}", "x") for number in range(60_000)]
    points = [NumberDataPoint(as_int=number, attributes=attributes[:20]) for number in range(1_000)]
    scopes = [ScopeMetrics(metrics=[Metric(name="org.apache.kafka.a.b", gauge=Gauge(data_points=points))])]
    of_resource = ResourceMetrics(resource=Resource(attributes=attributes), scope_metrics=scopes)
    data = MetricsData(resource_metrics=[of_resource]).SerializeToString()
    began_s = time.thread_time()

    values = read(data, 0, 2 * MAX_BYTES).values

    assert time.thread_time() - began_s < 2
    assert len(values) == 1_000
    assert values[0].name.tags == tuple(
        (f"a{number}", "x") for number in sorted(range(MOST_ATTRIBUTES), key=str)
    )


def test_of_hundreds_of_thousands_of_metrics_few_are_looked_at() -> None:
    many = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[ScopeMetrics()])])
    many.resource_metrics[0].scope_metrics[0].metrics.extend([Metric()] * (MOST_METRICS - 2))
    many.resource_metrics[0].scope_metrics[0].metrics.extend([gauge(1.0), gauge(2.0)])

    assert [value.value for value in read(many.SerializeToString(), 0, MAX_BYTES).values] == [1.0]


def test_a_label_of_nested_lists_has_no_text() -> None:
    """Its text would have a line for each empty value, indented by its depth: 200 MiB of a push of one."""
    nested = AnyValue(array_value=ArrayValue(values=[AnyValue() for _ in range(100_000)]))
    for _ in range(40):
        nested = AnyValue(array_value=ArrayValue(values=[nested]))
    point = NumberDataPoint(as_int=1, attributes=[KeyValue(key="list", value=nested)])
    data = payload(Metric(name="org.apache.kafka.a.b", gauge=Gauge(data_points=[point])))
    tracemalloc.start()

    (value,) = read(data, 0, MAX_BYTES).values

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert value.name.tags == (("client_rack", "r1"), ("list", ""))
    assert peak < 2 * MAX_BYTES


def test_values_that_are_no_numbers_are_left_out() -> None:
    assert read(payload(gauge(float("nan")), gauge(float("inf"))), 0, MAX_BYTES).values == []
    assert read(b"", 0, MAX_BYTES) == ([], b"")


@given(st.binary(min_size=1, max_size=200), st.integers(0, 4))
def test_nonsense_is_an_invalid_record_or_has_no_values(data: bytes, compression_type: int) -> None:
    try:
        values = read(data, compression_type, MAX_BYTES).values
    except (InvalidRecord, TelemetryTooLarge):
        return
    assert isinstance(values, list)


LABELS = {"client_id": "orders-1", "broker_id": "7"}


def forwarded(data: MetricsData) -> MetricsData:
    found: MetricsData = MetricsData.FromString(
        read(data.SerializeToString(), 0, MAX_BYTES, LABELS).forwarded
    )
    return found


def test_a_collector_is_handed_all_with_what_the_broker_knows_about_the_client() -> None:
    sent = MetricsData.FromString(payload(gauge(2.5), gauge(float("nan"))))
    sent.resource_metrics[0].resource.attributes.append(attribute("client_id", "forged"))

    (found,) = forwarded(sent).resource_metrics

    assert {one.key: one.value.string_value for one in found.resource.attributes} == {
        "client.rack": "r1", "client_id": "orders-1", "broker_id": "7",
    }  # fmt: skip
    assert _bytes_of(found) == _bytes_of(sent.resource_metrics[0])


def _bytes_of(resource: ResourceMetrics) -> list[bytes]:
    """Return the scopes as they are sent: versions of protobuf compare messages with NaN in two ways."""
    return [scope.SerializeToString() for scope in resource.scope_metrics]


def test_labels_do_not_make_a_push_of_many_resources_large() -> None:
    many = MetricsData(resource_metrics=[ResourceMetrics() for _ in range(100_000)])

    assert len(forwarded(many).resource_metrics) == MOST_RESOURCES


def test_without_a_collector_nothing_is_kept_for_one() -> None:
    assert read(payload(gauge(2.5)), 0, MAX_BYTES).forwarded == b""
