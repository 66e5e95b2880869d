"""Metrics of transactions, under Kafka's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ottla.broker.metrics import Metrics
    from ottla.protocol.topics import TopicPartition


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


class VerificationMeters:
    """The meters of verifications, those that this broker answers itself among them."""

    def __init__(self, metrics: Metrics) -> None:
        of = ("kafka.server", "AddPartitionsToTxnManager")
        self._time_ms = metrics.histogram(*of, "VerificationTimeMs")
        self._failures = metrics.meter(*of, "VerificationFailureRate")

    def note(self, errors: Mapping[TopicPartition, ErrorCode], took_ms: float) -> None:
        """Count one verification and the partitions that failed it."""
        self._time_ms.update(took_ms)
        failed = sum(1 for error in errors.values() if error is not ErrorCode.NONE)
        if failed:
            self._failures.mark(failed)
