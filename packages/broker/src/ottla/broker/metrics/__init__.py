"""The metrics of a broker, under Kafka's names.

The Prometheus endpoint is in `ottla.broker.metrics.prometheus`, which is imported only when it is configured.
"""

from ottla.broker.metrics.background_task_gauges import show_last_run, show_running
from ottla.broker.metrics.registry import (
    BUCKET_BOUNDS,
    TICK_MS,
    Gauge,
    Histogram,
    Meter,
    Metric,
    MetricName,
    Metrics,
)

__all__ = [
    "BUCKET_BOUNDS",
    "TICK_MS",
    "Gauge",
    "Histogram",
    "Meter",
    "Metric",
    "MetricName",
    "Metrics",
    "show_last_run",
    "show_running",
]
