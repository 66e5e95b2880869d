"""Tasks of streams groups: sets of partitions for each subtopology, active, standby and warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from ottla.zookeeper.frozen_classes import frozen

TaskSets: TypeAlias = Mapping[str, frozenset[int]]
"""Partitions by subtopology id, without subtopologies that have none."""

ActiveTasks: TypeAlias = Mapping[str, Mapping[int, int]]
"""The epoch in which each task was assigned, by subtopology id and partition."""


class TaskId(NamedTuple):
    """One task."""

    subtopology_id: str
    partition: int


NO_SETS: Final[TaskSets] = {}
NO_ACTIVE: Final[ActiveTasks] = {}


class NamedTasks(Protocol):
    """Some tasks of one subtopology, as messages and records name them."""

    subtopology_id: str
    partitions: list[int]


@frozen
class Tasks:
    """Tasks of one member, as it reports them or as it shall have them."""

    active: TaskSets = NO_SETS
    standby: TaskSets = NO_SETS
    warmup: TaskSets = NO_SETS

    @property
    def is_empty(self) -> bool:
        """Whether there is no task at all."""
        return not (self.active or self.standby or self.warmup)

    def contains_any(self, held: HeldTasks) -> bool:
        """Return whether a task of `held` is here, in the same role."""
        return (
            any(self.active.get(name, frozenset()) & epochs.keys() for name, epochs in held.active.items())
            or _overlap(self.standby, held.standby)
            or _overlap(self.warmup, held.warmup)
        )

    def has_elsewhere(self, wanted: HeldTasks, but: HeldTasks) -> bool:
        """Return whether a task of `wanted` is here in a role that it has not in `but`."""
        sought = union(union(without_epochs(wanted.active), wanted.standby), wanted.warmup)
        return any(
            (sets.get(name, frozenset()) & partitions) - left.get(name, frozenset())
            for name, partitions in sought.items()
            for sets, left in (
                (self.active, without_epochs(but.active)),
                (self.standby, but.standby),
                (self.warmup, but.warmup),
            )
        )

    def are_those_of(self, held: HeldTasks) -> bool:
        """Return whether both have the same tasks in the same roles."""
        return (
            self.active == without_epochs(held.active)
            and self.standby == held.standby
            and self.warmup == held.warmup
        )


@frozen
class HeldTasks:
    """Tasks that a member has or must revoke; active ones with the epoch that fences late commits."""

    active: ActiveTasks = NO_ACTIVE
    standby: TaskSets = NO_SETS
    warmup: TaskSets = NO_SETS

    @property
    def is_empty(self) -> bool:
        """Whether there is no task at all."""
        return not (self.active or self.standby or self.warmup)

    def merged(self, other: HeldTasks) -> HeldTasks:
        """Return the tasks of both."""
        return HeldTasks(
            {
                name: {**self.active.get(name, {}), **other.active.get(name, {})}
                for name in {**self.active, **other.active}
            },
            union(self.standby, other.standby),
            union(self.warmup, other.warmup),
        )


NO_TASKS: Final = Tasks()
NOTHING_HELD: Final = HeldTasks()


def task_sets(named: Iterable[NamedTasks]) -> TaskSets:
    """Return the tasks of a message or record."""
    sets: dict[str, frozenset[int]] = {}
    for tasks in named:
        if tasks.partitions:
            sets[tasks.subtopology_id] = sets.get(tasks.subtopology_id, frozenset()).union(tasks.partitions)
    return sets


def has_all(sets: TaskSets, named: Iterable[NamedTasks] | None) -> bool:
    """Return whether `sets` have all tasks that a message names; false where it does not say."""
    return named is not None and all(
        tasks.subtopology_id in sets and sets[tasks.subtopology_id].issuperset(tasks.partitions)
        for tasks in named
    )


def without_epochs(active: ActiveTasks) -> TaskSets:
    """Return active tasks without the epochs of their assignment."""
    return {name: frozenset(epochs) for name, epochs in active.items()}


def union(first: TaskSets, second: TaskSets) -> TaskSets:
    """Return the tasks of both."""
    return {
        name: first.get(name, frozenset()) | second.get(name, frozenset()) for name in {**first, **second}
    }


def each_task(sets: TaskSets) -> Iterator[TaskId]:
    """Iterate over single tasks."""
    for name, partitions in sets.items():
        for partition in partitions:
            yield TaskId(name, partition)


def grouped(tasks: Iterable[TaskId]) -> TaskSets:
    """Return single tasks by subtopology."""
    sets: dict[str, set[int]] = {}
    for name, partition in tasks:
        sets.setdefault(name, set()).add(partition)
    return {name: frozenset(partitions) for name, partitions in sets.items()}


def each_active(active: ActiveTasks) -> dict[TaskId, int]:
    """Return the epochs of single active tasks."""
    return {
        TaskId(name, partition): epoch
        for name, epochs in active.items()
        for partition, epoch in epochs.items()
    }


def grouped_active(tasks: Mapping[TaskId, int]) -> ActiveTasks:
    """Return single active tasks by subtopology."""
    active: dict[str, dict[int, int]] = {}
    for (name, partition), epoch in tasks.items():
        active.setdefault(name, {})[partition] = epoch
    return active


def _overlap(first: TaskSets, second: TaskSets) -> bool:
    return any(partitions & second.get(name, frozenset()) for name, partitions in first.items())
