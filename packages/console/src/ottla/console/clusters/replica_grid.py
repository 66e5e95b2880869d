"""The picture of replicas over brokers: which broker leads a partition, which follow, and which lag. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ottla.admin import ClusterState, PartitionHealth
from ottla.console.clusters.topic_rows import is_internal

Role = Literal["", "leader", "follower", "lagging", "away"]
MOST_ROWS: Final = 60
"""Partitions that are drawn; those that lack replicas come first."""


@dataclass(frozen=True, slots=True)
class GridRow:
    """A partition, and the role of each broker in it, in the order of the brokers."""

    name: str
    roles: tuple[Role, ...]
    is_healthy: bool


@dataclass(frozen=True, slots=True)
class ReplicaGrid:
    """Brokers by id, rows for partitions, and how many partitions are not drawn."""

    brokers: tuple[int, ...]
    rows: tuple[GridRow, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker: partitions that it leads, replicas, and those of them that lag."""

    leaders: int = 0
    replicas: int = 0
    lagging: int = 0


def replica_grid(state: ClusterState, *, topic: str | None = None, most: int = MOST_ROWS) -> ReplicaGrid:
    """Return the picture of a cluster, or of one topic."""
    chosen = [health for health in state.partitions if topic is None or health.partition.topic == topic]
    there = {broker.id for broker in state.brokers}
    brokers = tuple(sorted(there | {replica for health in chosen for replica in health.replicas}))
    # Stable: partitions with the same health keep the order of their names.
    ordered = sorted(
        chosen,
        key=lambda health: (
            health.leader is not None, _is_healthy(health), is_internal(health.partition.topic),
        ),
    )  # fmt: skip
    rows = tuple(
        GridRow(
            str(health.partition),
            tuple(_role(health, broker, broker in there) for broker in brokers),
            _is_healthy(health),
        )
        for health in ordered[:most]
    )
    return ReplicaGrid(brokers, rows, len(ordered) - len(rows))


def _is_healthy(health: PartitionHealth) -> bool:
    return set(health.isr) == set(health.replicas)


def _role(health: PartitionHealth, broker: int, is_there: bool) -> Role:
    if broker not in health.replicas:
        return ""
    if broker == health.leader:
        return "leader"
    if not is_there:
        return "away"
    return "follower" if broker in health.isr else "lagging"


def broker_loads(partitions: Iterable[PartitionHealth]) -> dict[int, BrokerLoad]:
    """Return what each broker carries, by id."""
    leaders, replicas, lagging = (
        defaultdict[int, int](int),
        defaultdict[int, int](int),
        defaultdict[int, int](int),
    )
    for health in partitions:
        if health.leader is not None:
            leaders[health.leader] += 1
        for replica in health.replicas:
            replicas[replica] += 1
            lagging[replica] += replica not in health.isr
    return {broker: BrokerLoad(leaders[broker], count, lagging[broker]) for broker, count in replicas.items()}
