from __future__ import annotations

from ottla.consumer.metrics import ConsumerMetrics
from ottla.protocol.topics import TopicPartition


def test_answers_commits_and_rebalances_are_counted() -> None:
    metrics = ConsumerMetrics()

    metrics.answered(10.0, throttle_ms=1.0)
    metrics.fetched("t", 5, 500)
    metrics.fetched("u", 1, 100)
    metrics.answered(30.0)
    metrics.committed(4.0)
    metrics.rebalanced(7.0)

    seen = metrics.snapshot()
    assert (seen["records_consumed_total"], seen["bytes_consumed_total"], seen["fetch_total"]) == (6, 600, 2)
    assert (seen["fetch_latency_avg"], seen["fetch_latency_max"]) == (20.0, 30.0)
    assert (seen["fetch_throttle_time_avg"], seen["fetch_throttle_time_max"]) == (0.5, 1.0)
    assert (seen["fetch_size_avg"], seen["records_per_request_avg"]) == (300, 3)
    assert (seen["commit_latency_avg"], seen["rebalance_latency_max"]) == (4.0, 7.0)
    assert seen["topic_records_consumed_total"] == {"t": 5, "u": 1}


def test_lags_are_those_of_the_moment() -> None:
    lags = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 8}
    metrics = ConsumerMetrics(lags=lambda: lags)

    assert (metrics.records_lag_max, metrics.assigned_partitions) == (8, 2)
    lags.clear()
    assert (metrics.records_lag_max, metrics.assigned_partitions) == (0, 0)


def test_every_sample_is_announced() -> None:
    metrics = ConsumerMetrics(lags=lambda: {TopicPartition("t", 0): 3})
    metrics.fetched("t", 1, 1)

    assert {each.description for each in metrics.samples()} == set(ConsumerMetrics.all_descriptions())
