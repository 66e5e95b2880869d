"""Gauges of logs and log directories, under Kafka's metric names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.metrics import Metrics
    from ottla.protocol.topics import TopicPartition

_LOG_GAUGES: Final[dict[str, Callable[[Log], int]]] = {
    "Size": lambda log: log.segments.size_bytes,
    "NumLogSegments": lambda log: len(log.segments),
    "LogStartOffset": lambda log: log.log_start_offset,
    "LogEndOffset": lambda log: log.log_end_offset,
}


class LogMetrics:
    """Registers and removes gauges; does nothing without a registry of metrics."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def add_directories(self, offline: Callable[[], int], full: Callable[[], int]) -> None:
        """Show how many log directories are offline, and how many have no room."""
        if self._metrics is not None:
            self._metrics.gauge("kafka.log", "LogManager", "OfflineLogDirectoryCount", offline)
            self._metrics.gauge("kafka.log", "LogManager", "FullLogDirectoryCount", full)

    def add(self, log: Log) -> None:
        """Show the size and the bounds of one log."""
        if self._metrics is None:
            return
        for name, value in _LOG_GAUGES.items():
            self._metrics.gauge("kafka.log", "Log", name, _reading(value, log), **_tags(log.topic_partition))

    def remove(self, topic_partition: TopicPartition) -> None:
        """Remove the gauges of one log."""
        if self._metrics is None:
            return
        for name in _LOG_GAUGES:
            self._metrics.remove("kafka.log", "Log", name, **_tags(topic_partition))


def _reading(value: Callable[[Log], int], log: Log) -> Callable[[], int]:
    return lambda: value(log)


def _tags(topic_partition: TopicPartition) -> dict[str, str]:
    return {"topic": topic_partition.topic, "partition": str(topic_partition.partition)}
