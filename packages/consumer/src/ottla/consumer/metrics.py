"""What a consumer counts. Names are Kafka's (`consumer-fetch-manager-metrics` and others)."""

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
    """What a consumer counts of one topic."""

    records_consumed_total: int = counter("Records that were fetched.")
    bytes_consumed_total: int = counter("Bytes of batches that were fetched, compressed.")


LAG = Description("records_lag", "gauge", "Records between position and end.", ("topic", "partition"))


@dataclass(slots=True)
class ConsumerMetrics(Metrics):
    """What a consumer counts. Attributes can be read at any time; `samples` gives all for exporters."""

    prefix = "consumer"
    derived: ClassVar = {
        "fetch_size_avg": "Bytes of an answer, on average.",
        "fetch_latency_avg": "Milliseconds from fetch to answer, on average; brokers wait for data.",
        "records_per_request_avg": "Records of an answer, on average.",
        "commit_latency_avg": "Milliseconds a commit took, on average.",
        "rebalance_latency_avg": "Milliseconds a rebalance took, on average.",
        "records_lag_max": "Records between position and end, of the partition that is most behind.",
        "assigned_partitions": "Partitions that are read.",
    }

    records_consumed_total: int = counter("Records that were fetched.")
    bytes_consumed_total: int = counter("Bytes of batches that were fetched, compressed.")
    fetch_total: int = counter("Fetches that were answered.")
    fetch_latency_total_ms: float = total("Milliseconds from fetch to answer, of all fetches.")
    fetch_latency_max: float = gauge("Milliseconds from fetch to answer, of the slowest.")
    fetch_throttle_time_total_ms: float = total("Milliseconds that brokers asked to wait, for quotas.")
    commit_total: int = counter("Commits that succeeded.")
    commit_error_total: int = counter("Commits that failed.")
    commit_latency_total_ms: float = total("Milliseconds of all commits.")
    commit_latency_max: float = gauge("Milliseconds of the slowest commit.")
    heartbeat_total: int = counter("Heartbeats that were answered.")
    join_total: int = counter("Times the consumer joined its group.")
    rebalance_total: int = counter("Rebalances that were done.")
    failed_rebalance_total: int = counter("Rebalances that failed, and were begun anew.")
    rebalance_latency_total_ms: float = total("Milliseconds of all rebalances.")
    rebalance_latency_max: float = gauge("Milliseconds of the slowest rebalance.")
    topics: dict[str, ConsumerTopicMetrics] = field(default_factory=dict)
    lags: Callable[[], Mapping[TopicPartition, int]] = field(default=_no_lags, repr=False)

    def fetched(self, topic: str, records: int, size_bytes: int) -> None:
        """Count what an answer held of one partition."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = ConsumerTopicMetrics()
        found.records_consumed_total += records
        found.bytes_consumed_total += size_bytes
        self.records_consumed_total += records
        self.bytes_consumed_total += size_bytes

    def answered(self, latency_ms: float, throttle_ms: float = 0) -> None:
        """Count the answer to a fetch."""
        self.fetch_total += 1
        self.fetch_latency_total_ms += latency_ms
        self.fetch_throttle_time_total_ms += throttle_ms
        if latency_ms > self.fetch_latency_max:
            self.fetch_latency_max = latency_ms

    def committed(self, latency_ms: float) -> None:
        """Count a commit that succeeded."""
        self.commit_total += 1
        self.commit_latency_total_ms += latency_ms
        if latency_ms > self.commit_latency_max:
            self.commit_latency_max = latency_ms

    def rebalanced(self, latency_ms: float) -> None:
        """Count a rebalance that was done."""
        self.rebalance_total += 1
        self.rebalance_latency_total_ms += latency_ms
        if latency_ms > self.rebalance_latency_max:
            self.rebalance_latency_max = latency_ms

    @property
    def fetch_size_avg(self) -> float:
        """Bytes of an answer, on average."""
        return average(self.bytes_consumed_total, self.fetch_total)

    @property
    def fetch_latency_avg(self) -> float:
        """Milliseconds from fetch to answer, on average."""
        return average(self.fetch_latency_total_ms, self.fetch_total)

    @property
    def records_per_request_avg(self) -> float:
        """Records of an answer, on average."""
        return average(self.records_consumed_total, self.fetch_total)

    @property
    def commit_latency_avg(self) -> float:
        """Milliseconds a commit took, on average."""
        return average(self.commit_latency_total_ms, self.commit_total)

    @property
    def rebalance_latency_avg(self) -> float:
        """Milliseconds a rebalance took, on average."""
        return average(self.rebalance_latency_total_ms, self.rebalance_total)

    @property
    def records_lag_max(self) -> int:
        """Records between position and end, of the partition that is most behind."""
        return max(self.lags().values(), default=0)

    @property
    def assigned_partitions(self) -> int:
        """Partitions that are read."""
        return len(self.lags())

    @classmethod
    def all_descriptions(cls) -> tuple[Description, ...]:
        """Say which metrics there are, those of topics and partitions among them."""
        return (*cls.descriptions(), *ConsumerTopicMetrics.descriptions(("topic",)), LAG)

    def samples(self) -> Iterator[Sample]:
        """Give every metric with its value, those of topics and partitions among them."""
        yield from self.tagged({})
        for name, metrics in tuple(self.topics.items()):
            yield from metrics.tagged({"topic": name})
        for (topic, partition), lag in self.lags().items():
            yield Sample(LAG, {"topic": topic, "partition": str(partition)}, lag)
