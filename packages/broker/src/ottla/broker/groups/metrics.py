"""What a coordinator counts, under Kafka's names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.groups.events import GroupState

if TYPE_CHECKING:
    from ottla.broker.groups.hosted import HostedPartitions
    from ottla.broker.metrics import Metrics


class GroupMeters:
    """The meters of one coordinator; the numbers of its groups and offsets are read off `hosted`."""

    def __init__(self, metrics: Metrics, hosted: HostedPartitions) -> None:
        kind = ("kafka.server", "group-coordinator-metrics")
        self.commits = metrics.meter(*kind, "offset-commit")
        self.expirations = metrics.meter(*kind, "offset-expiration")
        self.deletions = metrics.meter(*kind, "offset-deletion")
        self.rebalances = metrics.meter(*kind, "group-completed-rebalance")
        self.load_time = metrics.histogram(*kind, "partition-load-time")
        manager = ("kafka.coordinator.group", "GroupMetadataManager")
        metrics.gauge(*manager, "NumGroups", lambda: sum(1 for _ in hosted.groups()))
        metrics.gauge(*manager, "NumOffsets", lambda: sum(len(one.offsets) for one in hosted.groups()))
        for state in GroupState:
            metrics.gauge(*manager, f"NumGroups{state.value}", partial(hosted.count, state))
