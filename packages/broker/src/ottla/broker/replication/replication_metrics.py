"""Metrics of hosted partitions and of followers' fetchers, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.metrics import Meter, Metrics
    from ottla.broker.replication.hosted_partition import HostedPartition
    from ottla.protocol.topics import TopicPartition


_KIND: Final = ("kafka.cluster", "Partition")

_GAUGES: Final[dict[str, Callable[[HostedPartition], int]]] = {
    "ReplicasCount": lambda partition: len(partition.core.replicas) if partition.leads else 0,
    "InSyncReplicasCount": lambda partition: len(partition.core.isr) if partition.leads else 0,
    "UnderReplicated": lambda partition: int(partition.core.is_under_replicated),
    "UnderMinIsr": lambda partition: int(partition.leads and partition.core.is_under_min_isr),
    "AtMinIsr": lambda partition: int(partition.leads and partition.core.is_at_min_isr),
    "LastStableOffsetLag": lambda partition: partition.high_watermark - partition.log.last_stable_offset,
}

_ALL: Final = ("kafka.server", "ReplicaFetcherManager")
_LAG: Final = ("kafka.server", "FetcherLagMetrics", "ConsumerLag")
_STATS: Final = ("kafka.server", "FetcherStats")


class PartitionGauges:
    """Registers and removes them; does nothing without a registry of metrics."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics

    def add(self, partition: HostedPartition) -> None:
        """Show one partition."""
        if self._metrics is not None:
            tags = _tags(partition.topic_partition)
            for name, read in _GAUGES.items():
                self._metrics.gauge(*_KIND, name, partial(read, partition), **tags)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Remove the gauges of one partition."""
        if self._metrics is not None:
            tags = _tags(topic_partition)
            for name in _GAUGES:
                self._metrics.remove(*_KIND, name, **tags)


def _tags(topic_partition: TopicPartition) -> dict[str, str]:
    return {"topic": topic_partition.topic, "partition": str(topic_partition.partition)}


@dataclass(slots=True, eq=False, repr=False)
class FetcherMeters:
    """The meters of one fetcher, and those of all replicated bytes."""

    requests: Meter
    bytes: Meter
    all_bytes: Meter
    reassigned_bytes: Meter
    """Of the partitions that this broker copies to become one of their replicas."""


class ReplicationMetrics:
    """Makes the metrics of fetchers and of the partitions they copy, and removes them again."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        kind = ("kafka.server", "BrokerTopicMetrics")
        self._bytes_in = metrics.meter(*kind, "ReplicationBytesInPerSec")
        self._reassigned_in = metrics.meter(*kind, "ReassignmentBytesInPerSec")

    def show(
        self,
        *,
        max_lag: Callable[[], float],
        failed: Callable[[], float],
        min_rate: Callable[[], float],
        dead: Callable[[], float],
    ) -> None:
        """Register the gauges over all fetchers."""
        self._metrics.gauge(*_ALL, "MaxLag", max_lag, clientId="Replica")
        self._metrics.gauge(*_ALL, "FailedPartitionsCount", failed, clientId="Replica")
        self._metrics.gauge(*_ALL, "MinFetchRate", min_rate, clientId="Replica")
        self._metrics.gauge(*_ALL, "DeadThreadCount", dead, clientId="Replica")

    def fetcher(self, name: str, leader: int) -> FetcherMeters:
        """Return the meters of a fetcher."""
        return FetcherMeters(
            self._metrics.meter(*_STATS, "RequestsPerSec", clientId=name, brokerId=str(leader)),
            self._metrics.meter(*_STATS, "BytesPerSec", clientId=name, brokerId=str(leader)),
            self._bytes_in,
            self._reassigned_in,
        )

    def fetcher_ended(self, name: str, leader: int) -> None:
        """Remove the meters of a fetcher."""
        for rate in ("RequestsPerSec", "BytesPerSec"):
            self._metrics.remove(*_STATS, rate, clientId=name, brokerId=str(leader))

    def followed(self, fetcher: str, partition: TopicPartition, lag: Callable[[], float]) -> None:
        """Register the lag of a partition behind its leader's high watermark."""
        self._metrics.gauge(*_LAG, lag, **_fetch_tags(fetcher, partition))

    def unfollowed(self, fetcher: str, partition: TopicPartition) -> None:
        """Remove the lag of a partition."""
        self._metrics.remove(*_LAG, **_fetch_tags(fetcher, partition))


def _fetch_tags(fetcher: str, partition: TopicPartition) -> dict[str, str]:
    return {"clientId": fetcher} | _tags(partition)
