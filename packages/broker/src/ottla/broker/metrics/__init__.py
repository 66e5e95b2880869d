"""The metrics of a broker, under Kafka's names.

The Prometheus endpoint is in `ottla.broker.metrics.prometheus`, which is imported only when it is configured.
"""

from ottla.broker.metrics.event_loop import watch_event_loop_lag
from ottla.broker.metrics.heartbeat import heartbeat, show_running
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
    "heartbeat",
    "show_running",
    "watch_event_loop_lag",
]
