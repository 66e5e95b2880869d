"""The metrics of a broker, under Kafka's names.

The Prometheus endpoint is in `ottla.broker.metrics.prometheus`, which is imported only when it is configured.
"""

from ottla.broker.metrics.registry import (
    BUCKET_BOUNDS,
    TICK_MS,
    Gauge,
    Histogram,
    Meter,
    Metric,
    MetricName,
    Metrics,
    show_last_run,
    show_running,
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
