"""Gauges of each hosted partition, under Kafka's names; all but the last are 0 where it is not led."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.metrics import Metrics
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
