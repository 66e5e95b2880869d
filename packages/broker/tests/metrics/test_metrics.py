from __future__ import annotations

import pytest

from ottla.broker.metrics import TICK_MS, Metrics


def test_the_same_name_gives_the_same_meter() -> None:
    metrics = Metrics()

    metrics.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", topic="t").mark(3)

    assert metrics.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec", topic="t").count == 3
    assert metrics.meter("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec").count == 0


def test_one_name_cannot_be_two_kinds_of_metric() -> None:
    metrics = Metrics()
    metrics.meter("g", "t", "n")

    with pytest.raises(TypeError, match="g:type=t,name=n is a Meter"):
        metrics.histogram("g", "t", "n")


def test_a_steady_meter_reports_its_rate_a_second() -> None:
    metrics = Metrics()
    meter = metrics.meter("g", "t", "EventsPerSec")

    for tick in range(100):
        meter.mark(50)
        metrics.tick(tick * TICK_MS)

    assert meter.one_minute_rate == pytest.approx(10.0)


def test_quantiles_are_within_a_quarter_and_forget_after_two_windows() -> None:
    metrics = Metrics()
    histogram = metrics.histogram("g", "t", "TimeMs")
    for value in range(1, 1001):
        histogram.update(value)

    assert 500 <= histogram.quantile(0.5) <= 625
    assert 990 <= histogram.quantile(0.99) <= 1000
    assert histogram.mean == pytest.approx(500.5)

    metrics.tick(60_000)
    assert histogram.quantile(0.5) > 0
    metrics.tick(120_000)
    assert histogram.quantile(0.5) == 0
    assert histogram.count == 1000
