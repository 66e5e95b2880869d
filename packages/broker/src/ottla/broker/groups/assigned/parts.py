"""The parts in which a large target assignment is written: none of its writes takes long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.broker.groups.assigned.assignors import Assignment
from ottla.zookeeper.frozen_classes import frozen

_MEMBER_COSTS = 16
_TOPIC_COSTS = 4
_PARTITIONS_FOR_ONE = 8
_MOST = 2_048
"""About two milliseconds, where a cost of one is a microsecond."""


@frozen
class AssignmentPart:
    """A part of a target assignment that was made in steps; the last one has its epoch."""

    targets: tuple[tuple[str, Assignment], ...]
    epoch: int | None = None


def in_parts(targets: Mapping[str, Assignment], epoch: int) -> Iterator[AssignmentPart]:
    """Divide an assignment by what it costs to write."""
    some: list[tuple[str, Assignment]] = []
    costs = 0
    for member_id, assigned in targets.items():
        some.append((member_id, assigned))
        partitions = sum(map(len, assigned.values()))
        costs += _MEMBER_COSTS + _TOPIC_COSTS * len(assigned) + partitions // _PARTITIONS_FOR_ONE
        if costs >= _MOST:
            yield AssignmentPart(tuple(some))
            some, costs = [], 0
    if some:
        yield AssignmentPart(tuple(some))
    yield AssignmentPart((), epoch)
