"""Metrics of the group coordinator, under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.groups.classic.events import GroupState
from ottla.broker.groups.offsets.partition_state import HostedGroup

if TYPE_CHECKING:
    from ottla.broker.metrics import Metrics


class GroupMeters:
    """The meters of one coordinator; its gauges count the groups and offsets in `hosted`."""

    def __init__(self, metrics: Metrics, hosted: Iterable[HostedGroup]) -> None:
        kind = ("kafka.server", "group-coordinator-metrics")
        self.commits = metrics.meter(*kind, "offset-commit")
        self.expirations = metrics.meter(*kind, "offset-expiration")
        self.deletions = metrics.meter(*kind, "offset-deletion")
        self.rebalances = metrics.meter(*kind, "group-completed-rebalance")
        self.load_time = metrics.histogram(*kind, "partition-load-time")
        manager = ("kafka.coordinator.group", "GroupMetadataManager")
        metrics.gauge(*manager, "NumGroups", lambda: sum(1 for _ in hosted))
        metrics.gauge(*manager, "NumOffsets", lambda: sum(len(one.offsets) for one in hosted))
        for state in GroupState:
            metrics.gauge(*manager, f"NumGroups{state.value}", partial(_count, hosted, state))


def _count(hosted: Iterable[HostedGroup], state: GroupState) -> int:
    return sum(one.group.state is state for one in hosted)
