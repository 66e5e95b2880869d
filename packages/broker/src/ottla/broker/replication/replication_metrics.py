"""Metrics of followers, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.metrics import Meter, Metrics
    from ottla.protocol.topics import TopicPartition

_ALL: Final = ("kafka.server", "ReplicaFetcherManager")
_LAG: Final = ("kafka.server", "FetcherLagMetrics", "ConsumerLag")
_STATS: Final = ("kafka.server", "FetcherStats")


@dataclass(slots=True)
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
        self._metrics.gauge(*_LAG, lag, **_tags(fetcher, partition))

    def unfollowed(self, fetcher: str, partition: TopicPartition) -> None:
        """Remove the lag of a partition."""
        self._metrics.remove(*_LAG, **_tags(fetcher, partition))


def _tags(fetcher: str, partition: TopicPartition) -> dict[str, str]:
    return {"clientId": fetcher, "topic": partition.topic, "partition": str(partition.partition)}
