"""Topics of a cluster as rows: searched, sorted, and cut into pages. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.admin import ClusterState

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic: partitions, replicas of each, partitions that lack some or have no leader, bytes on all disks.

    `size_bytes` counts every replica, and is -1 where no broker describes its log directories.
    """

    name: str
    partitions: int
    replication_factor: int
    under_replicated: int
    leaderless: int
    size_bytes: int
    written_per_s: float | None = None
    """Records written per second; None until the console has looked twice."""

    @property
    def is_internal(self) -> bool:
        """Whether brokers keep their own state in it."""
        return is_internal(self.name)


def is_internal(topic: str) -> bool:
    """Whether brokers keep their own state in a topic."""
    return topic.startswith("__")


def topic_rows(state: ClusterState, rates: Mapping[str, float] | None = None) -> list[TopicRow]:
    """Return a row for each topic of a cluster, by name; `rates` are the records written per second."""
    sizes = _sizes(state)
    partitions = defaultdict(list)
    for partition in state.partitions:
        partitions[partition.partition.topic].append(partition)
    return [
        TopicRow(
            name,
            len(found),
            max((len(partition.replicas) for partition in found), default=0),
            sum(partition.lacks_replicas for partition in found),
            sum(partition.leader is None for partition in found),
            UNKNOWN if sizes is None else sizes.get(name, 0),
            (rates or {}).get(name),
        )
        for name, found in sorted(partitions.items())
    ]


def _sizes(state: ClusterState) -> Mapping[str, int] | None:
    if not state.log_dirs:
        return None
    sizes: dict[str, int] = defaultdict(int)
    for log_dir in state.log_dirs:
        for replica in log_dir.replicas:
            sizes[replica.partition.topic] += replica.size_bytes
    return sizes


_ORDERS: Final[Mapping[str, Callable[[TopicRow], Any]]] = {
    "name": lambda row: row.name,
    "partitions": lambda row: row.partitions,
    "replicas": lambda row: row.replication_factor,
    "size": lambda row: row.size_bytes,
    "rate": lambda row: -1.0 if row.written_per_s is None else row.written_per_s,
    "health": lambda row: (row.leaderless, row.under_replicated),
}
TOPIC_ORDERS: Final = tuple(_ORDERS)


def chosen_topics(
    rows: list[TopicRow],
    *,
    text: str = "",
    order: str = "name",
    descending: bool = False,
    internal: bool = False,
    lacking: bool = False,
) -> list[TopicRow]:
    """Return the topics whose name contains every word of a text, in the order asked for.

    With `lacking` only those with a partition that lacks replicas or a leader.
    """
    words = text.lower().split()
    chosen = [
        row
        for row in rows
        if (internal or not row.is_internal)
        and not (lacking and not row.under_replicated and not row.leaderless)
        and all(word in row.name.lower() for word in words)
    ]
    return sorted(chosen, key=_ORDERS.get(order, _ORDERS["name"]), reverse=descending)
