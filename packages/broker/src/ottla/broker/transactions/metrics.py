"""Metrics of the transaction coordinator, under Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.metrics import Metrics


class TransactionMeters:
    """The meters of one coordinator; its gauges call the functions."""

    def __init__(
        self, metrics: Metrics, *, without_leader: Callable[[], int], completions: Callable[[], int]
    ) -> None:
        self.load_time = metrics.histogram(
            "kafka.server", "transaction-coordinator-metrics", "partition-load-time"
        )
        channels = ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")
        metrics.gauge(*channels, "UnknownDestinationQueueSize", without_leader)
        metrics.gauge(*channels, "LogAppendRetryQueueSize", completions)
