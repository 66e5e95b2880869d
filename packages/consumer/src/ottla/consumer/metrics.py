"""Counters and timers of the consumer, under Kafka's metric names (`consumer-fetch-manager-metrics` …)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.client.metrics import Description, Metrics, Sample, average, counter, gauge, total
from ottla.protocol.topics import TopicPartition


def _no_lags() -> Mapping[TopicPartition, int]:
    return {}


@dataclass(slots=True)
class ConsumerTopicMetrics(Metrics):
    """The metrics of one topic."""

    records_consumed_total: int = counter("Records that were fetched.")
    bytes_consumed_total: int = counter("Bytes of batches that were fetched, compressed.")


LAG = Description("records_lag", "gauge", "Records between position and end.", ("topic", "partition"))


@dataclass(slots=True)
class ConsumerMetrics(Metrics):
    """The metrics of a consumer. Attributes can be read at any time; `samples` returns all for exporters."""

    prefix = "consumer"
    derived: ClassVar = {
        "fetch_size_avg": "Average bytes of a response.",
        "fetch_latency_avg": "Average milliseconds from fetch to response; brokers wait for data.",
        "fetch_throttle_time_avg": "Average milliseconds that brokers throttled a fetch for a quota.",
        "records_per_request_avg": "Average records of a response.",
        "commit_latency_avg": "Average milliseconds of a commit.",
        "rebalance_latency_avg": "Average milliseconds of a rebalance.",
        "records_lag_max": "Records between position and end, of the partition with the largest lag.",
        "assigned_partitions": "Assigned partitions.",
    }

    records_consumed_total: int = counter("Records that were fetched.")
    bytes_consumed_total: int = counter("Bytes of batches that were fetched, compressed.")
    fetch_total: int = counter("Fetch responses.")
    fetch_latency_total_ms: float = total("Milliseconds from fetch to response, of all fetches.")
    fetch_latency_max: float = gauge("Milliseconds from fetch to response, of the slowest.")
    fetch_throttle_time_total_ms: float = total("Milliseconds that brokers throttled fetches for quotas.")
    fetch_throttle_time_max: float = gauge("Milliseconds of the longest throttle of a fetch.")
    commit_total: int = counter("Commits that succeeded.")
    commit_error_total: int = counter("Commits that failed.")
    commit_latency_total_ms: float = total("Milliseconds of all commits.")
    commit_latency_max: float = gauge("Milliseconds of the slowest commit.")
    heartbeat_total: int = counter("Heartbeat responses.")
    join_total: int = counter("Times the consumer joined its group.")
    rebalance_total: int = counter("Completed rebalances.")
    failed_rebalance_total: int = counter("Failed rebalances.")
    rebalance_latency_total_ms: float = total("Milliseconds of all rebalances.")
    rebalance_latency_max: float = gauge("Milliseconds of the slowest rebalance.")
    topics: dict[str, ConsumerTopicMetrics] = field(default_factory=dict)
    lags: Callable[[], Mapping[TopicPartition, int]] = field(default=_no_lags, repr=False)

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        """Count the data of one partition in a response."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = ConsumerTopicMetrics()
        found.records_consumed_total += records
        found.bytes_consumed_total += size_bytes
        self.records_consumed_total += records
        self.bytes_consumed_total += size_bytes

    def answered(self, latency_ms: float, throttle_ms: float = 0) -> None:
        """Count a fetch response."""
        self.fetch_total += 1
        self.fetch_latency_total_ms += latency_ms
        self.fetch_throttle_time_total_ms += throttle_ms
        if throttle_ms > self.fetch_throttle_time_max:
            self.fetch_throttle_time_max = throttle_ms
        if latency_ms > self.fetch_latency_max:
            self.fetch_latency_max = latency_ms

    def committed(self, latency_ms: float) -> None:
        """Count a successful commit."""
        self.commit_total += 1
        self.commit_latency_total_ms += latency_ms
        if latency_ms > self.commit_latency_max:
            self.commit_latency_max = latency_ms

    def rebalanced(self, latency_ms: float) -> None:
        """Count a completed rebalance."""
        self.rebalance_total += 1
        self.rebalance_latency_total_ms += latency_ms
        if latency_ms > self.rebalance_latency_max:
            self.rebalance_latency_max = latency_ms

    @property
    def fetch_size_avg(self) -> float:
        """Average bytes of a response."""
        return average(self.bytes_consumed_total, self.fetch_total)

    @property
    def fetch_latency_avg(self) -> float:
        """Average milliseconds from fetch to response."""
        return average(self.fetch_latency_total_ms, self.fetch_total)

    @property
    def fetch_throttle_time_avg(self) -> float:
        """Average milliseconds that brokers throttled a fetch for a quota."""
        return average(self.fetch_throttle_time_total_ms, self.fetch_total)

    @property
    def records_per_request_avg(self) -> float:
        """Average records of a response."""
        return average(self.records_consumed_total, self.fetch_total)

    @property
    def commit_latency_avg(self) -> float:
        """Average milliseconds of a commit."""
        return average(self.commit_latency_total_ms, self.commit_total)

    @property
    def rebalance_latency_avg(self) -> float:
        """Average milliseconds of a rebalance."""
        return average(self.rebalance_latency_total_ms, self.rebalance_total)

    @property
    def records_lag_max(self) -> int:
        """Records between position and end, of the partition with the largest lag."""
        return max(self.lags().values(), default=0)

    @property
    def assigned_partitions(self) -> int:
        """Assigned partitions."""
        return len(self.lags())

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Return the descriptions of all metrics, including those of topics and partitions."""
        return (*cls.descriptions(), *ConsumerTopicMetrics.descriptions(("topic",)), LAG)

    def samples(self) -> Iterator[Sample]:
        """Return every metric with its value, including those of topics and partitions."""
        yield from self.tagged({})
        for name, metrics in tuple(self.topics.items()):
            yield from metrics.tagged({"topic": name})
        for (topic, partition), lag in self.lags().items():
            yield Sample(LAG, {"topic": topic, "partition": str(partition)}, lag)


@dataclass(slots=True)
class ShareConsumerMetrics(ConsumerMetrics):
    """The metrics of a share consumer, beside those that every consumer has."""

    prefix = "share_consumer"

    acknowledgement_total: int = counter("Acknowledgements of records that brokers took.")
    acknowledgement_error_total: int = counter("Acknowledgements of records that brokers refused.")

    def acknowledged(self, count: int, *, is_failed: bool) -> None:
        """Count acknowledgements that were answered."""
        self.acknowledgement_total += 0 if is_failed else count
        self.acknowledgement_error_total += count if is_failed else 0
