from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from ottla.client.metrics.prometheus import PrometheusMetrics
from ottla.producer.metrics import ProducerMetrics


def test_batches_and_responses_are_counted() -> None:
    metrics = ProducerMetrics(buffer_total_bytes=100, available=lambda: 60, in_flight=lambda: 1)

    metrics.batch_sent("t", 10, 1_000, waited_ms=4.0, attempt=0)
    metrics.batch_sent("t", 10, 1_000, waited_ms=40.0, attempt=1)
    metrics.batch_sent("u", 2, 400, waited_ms=6.0, attempt=0)
    metrics.batch_failed("u", 2)
    metrics.request_total += 2
    metrics.answered(8.0)
    metrics.answered(2.0, throttle_ms=5.0)

    seen = metrics.snapshot()
    assert (seen["record_send_total"], seen["record_retry_total"], seen["record_error_total"]) == (22, 10, 2)
    assert (seen["byte_total"], seen["batch_size_max"], seen["batch_size_avg"]) == (2_400, 1_000, 800)
    assert seen["records_per_request_avg"] == 11
    assert (seen["request_latency_avg"], seen["request_latency_max"]) == (5.0, 8.0)
    assert (seen["produce_throttle_time_avg"], seen["produce_throttle_time_max"]) == (2.5, 5.0)
    assert seen["record_queue_time_max"] == 6.0
    assert seen["topic_record_send_total"] == {"t": 20, "u": 2}
    assert (seen["buffer_total_bytes"], seen["buffer_available_bytes"], seen["requests_in_flight"]) == (
        100,
        60,
        1,
    )


def test_every_sample_is_announced() -> None:
    metrics = ProducerMetrics()
    metrics.topic("t")

    assert {each.description for each in metrics.samples()} == set(ProducerMetrics.all_descriptions())


def test_prometheus_reads_them_under_kafkas_names() -> None:
    metrics = ProducerMetrics()
    metrics.batch_sent("t", 10, 1_000, waited_ms=4.0, attempt=0)
    registry = CollectorRegistry()
    PrometheusMetrics(registry).add(metrics, client_id="shop")

    page = generate_latest(registry).decode()

    assert 'kafka_producer_record_send_total{client_id="shop"} 10.0' in page
    assert 'kafka_producer_topic_record_send_total{client_id="shop",topic="t"} 10.0' in page
