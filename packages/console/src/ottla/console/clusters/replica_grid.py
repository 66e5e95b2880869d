"""The picture of replicas over brokers: leaders, followers, those that lag, and what moves. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ottla.admin import ClusterState, PartitionHealth, Reassignment
from ottla.console.clusters.topic_rows import is_internal
from ottla.protocol.topics import TopicPartition

Role = Literal["", "leader", "follower", "lagging", "away", "added", "leaving"]
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
    """Brokers by id, rows for partitions, and how many partitions are not drawn, internal ones apart."""

    brokers: tuple[int, ...]
    rows: tuple[GridRow, ...]
    left_out: int
    internal: int = 0
    """Partitions of internal topics that are left out because they are such."""
    lacking_internal: int = 0
    """Those of them that lack replicas."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The load of a broker: partitions that it leads, replicas, those that lag, and those that it is to lead.

    The first replica of a partition is its preferred leader.
    """

    leaders: int = 0
    replicas: int = 0
    lagging: int = 0
    preferred: int = 0


def replica_grid(
    state: ClusterState,
    *,
    topic: str | None = None,
    moves: Sequence[Reassignment] = (),
    only_moves: bool = False,
    internal: bool = True,
    most: int = MOST_ROWS,
) -> ReplicaGrid:
    """Return the picture of a cluster, of one topic, or of what moves; partitions that move come first.

    Without `internal` those of internal topics are counted only, if they do not move.
    """
    moving = {move.partition: move for move in moves}
    wanted = [
        health
        for health in state.partitions
        if topic in (None, health.partition.topic) and (not only_moves or health.partition in moving)
    ]
    chosen, hidden = list[PartitionHealth](), list[PartitionHealth]()
    for health in wanted:
        is_shown = internal or health.partition in moving or not is_internal(health.partition.topic)
        (chosen if is_shown else hidden).append(health)
    there = {broker.id for broker in state.brokers}
    brokers = tuple(sorted(there | {replica for health in wanted for replica in health.replicas}))
    # Stable: partitions with the same health keep the order of their names.
    ordered = sorted(
        chosen,
        key=lambda health: (
            health.leader is not None,
            health.partition not in moving,
            not health.lacks_replicas,
            is_internal(health.partition.topic),
        ),
    )
    rows = tuple(
        GridRow(
            str(health.partition),
            tuple(_role(health, broker, broker in there, moving.get(health.partition)) for broker in brokers),
            not health.lacks_replicas,
        )
        for health in ordered[:most]
    )
    lacking = sum(health.lacks_replicas for health in hidden)
    return ReplicaGrid(brokers, rows, len(ordered) - len(rows), len(hidden), lacking)


def planned_grid(
    now: Mapping[TopicPartition, Sequence[int]],
    then: Mapping[TopicPartition, Sequence[int]],
    *,
    most: int = MOST_ROWS,
) -> ReplicaGrid:
    """Return the picture of a plan: replicas as they will be, those that are added, and those that leave."""
    brokers = tuple(
        sorted({broker for some in (now, then) for replicas in some.values() for broker in replicas})
    )

    def role(partition: TopicPartition, broker: int) -> Role:
        before, after = now.get(partition, ()), then[partition]
        if broker not in after:
            return "leaving" if broker in before else ""
        if broker not in before:
            return "added"
        return "leader" if broker == after[0] else "follower"

    rows = tuple(
        GridRow(str(partition), tuple(role(partition, broker) for broker in brokers), True)
        for partition in sorted(then)[:most]
    )
    return ReplicaGrid(brokers, rows, len(then) - len(rows))


def _role(health: PartitionHealth, broker: int, is_there: bool, move: Reassignment | None) -> Role:
    if broker not in health.replicas:
        return ""
    if broker == health.leader:
        return "leader"
    if not is_there:
        return "away"
    if move is not None and broker in move.removing:
        return "leaving"
    if broker in health.isr:
        return "follower"
    return "added" if move is not None and broker in move.adding else "lagging"


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """A partition that moves, and how many bytes its new replicas have of those that they will have.

    Bytes are None where a broker does not describe its log directories.
    """

    move: Reassignment
    leader: int | None
    copied_bytes: int | None
    total_bytes: int | None

    @property
    def percent(self) -> int | None:
        """How much is copied, 0 to 100; None where it is not known."""
        if self.copied_bytes is None or self.total_bytes is None:
            return None
        return 100 if self.total_bytes == 0 else int(100 * self.copied_bytes / self.total_bytes)


def move_progress(state: ClusterState, moves: Iterable[Reassignment]) -> list[MoveProgress]:
    """Return how far each move is, by the sizes of replicas in the log directories."""
    health = {found.partition: found for found in state.partitions}
    on_disk = {
        (log_dir.broker, replica.partition): replica
        for log_dir in state.log_dirs
        for replica in log_dir.replicas
        if not replica.is_future
    }

    def progress(move: Reassignment) -> MoveProgress:
        found = health.get(move.partition)
        leader = None if found is None else found.leader
        source = None if leader is None else on_disk.get((leader, move.partition))
        described = {log_dir.broker for log_dir in state.log_dirs}
        if source is None or not described.issuperset(move.adding):
            return MoveProgress(move, leader, None, None)
        copies = [on_disk.get((broker, move.partition)) for broker in move.adding]
        copied = sum(min(copy.size_bytes, source.size_bytes) for copy in copies if copy is not None)
        return MoveProgress(move, leader, copied, source.size_bytes * len(copies))

    return [progress(move) for move in moves]


def unpreferred(partitions: Iterable[PartitionHealth]) -> list[PartitionHealth]:
    """Return the partitions that another replica leads than the first, which is the preferred leader."""
    return [
        health for health in partitions if health.replicas and health.leader not in (None, health.replicas[0])
    ]


def broker_loads(partitions: Iterable[PartitionHealth]) -> dict[int, BrokerLoad]:
    """Return what each broker carries, by id."""
    leaders, replicas, lagging, preferred = (defaultdict[int, int](int) for _ in range(4))
    for health in partitions:
        for first in health.replicas[:1]:
            preferred[first] += 1
        if health.leader is not None:
            leaders[health.leader] += 1
        for replica in health.replicas:
            replicas[replica] += 1
            lagging[replica] += replica not in health.isr
    return {
        broker: BrokerLoad(leaders[broker], count, lagging[broker], preferred[broker])
        for broker, count in replicas.items()
    }
