"""The assignor `sticky`: tasks stay where their state is, as far as the load of members allows it.

Active tasks go, in this order, to the member that ran them, to one that has their state (standbys before
local files, the state with the highest offsets first), then to the process with the lowest load. Standby
tasks follow, never to a process that has the task already. Results are those of Kafka 4.4's
`StickyTaskAssignor`, which breaks ties by the iteration order of its collections.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.groups.streams.java_collections import (
    BinaryHeap,
    computed_map_order,
    hash_map_order,
    hash_map_order_of_many,
)
from ottla.broker.groups.streams.tasks import NO_SETS, TaskId, Tasks, TaskSets
from ottla.broker.runtime.loop_budget import SLICE, slices
from ottla.zookeeper.frozen_classes import frozen

TaskOffsets: TypeAlias = Mapping[str, Mapping[int, int]]
"""Offsets by subtopology id and partition: the sum over the changelogs of the task."""

STICKY: Final = "sticky"
NO_OFFSETS: Final[TaskOffsets] = {}


@frozen(kw_only=True)
class AssignedMember:
    """A member, and what it has at the time of the assignment."""

    process_id: str
    active: TaskSets = NO_SETS
    standby: TaskSets = NO_SETS
    task_offsets: TaskOffsets = NO_OFFSETS


@frozen
class AssignedSubtopology:
    """A subtopology: its number of tasks, and whether they have state."""

    tasks: int
    is_stateful: bool


Steps: TypeAlias = Generator[None, None, dict[str, Tasks]]


def assign(
    members: Mapping[str, AssignedMember],
    subtopologies: Mapping[str, AssignedSubtopology],
    standby_replicas: int = 0,
) -> Steps:
    """Assign all tasks to members, in steps; the result has every member.

    `members` are in the order of their insertion into a `HashMap`, `subtopologies` in the order of their ids.
    """
    if not members:
        return {}
    assignment = _Assignment(members, subtopologies, standby_replicas)
    yield from assignment.read_members()
    yield from assignment.assign_active(_task_ids(subtopologies, only_stateful=False))
    if standby_replicas > 0:
        yield from assignment.assign_standbys(_task_ids(subtopologies, only_stateful=True))
    return (yield from assignment.result())


def _task_ids(subtopologies: Mapping[str, AssignedSubtopology], *, only_stateful: bool) -> Iterator[TaskId]:
    for name, subtopology in subtopologies.items():
        if subtopology.is_stateful or not only_stateful:
            yield from (TaskId(name, partition) for partition in range(subtopology.tasks))


class _StateOfTask(NamedTuple):
    """A member that has state of a task: as a standby, or only as local files."""

    member_id: str
    is_standby: bool
    offset_sum: int


def _states_of(member_id: str, member: AssignedMember) -> Iterator[tuple[TaskId, _StateOfTask]]:
    offsets = member.task_offsets
    for name, partitions in member.standby.items():
        of_name = offsets.get(name, {})
        for partition in partitions:
            yield TaskId(name, partition), _StateOfTask(member_id, True, of_name.get(partition, 0))
    for name, of_name in offsets.items():
        standbys = member.standby.get(name, frozenset())
        for partition, offset_sum in of_name.items():
            if partition not in standbys:
                yield TaskId(name, partition), _StateOfTask(member_id, False, offset_sum)


def _best_first(state: _StateOfTask) -> tuple[bool, int]:
    return not state.is_standby, -state.offset_sum


class _Quota:
    """Tasks that a member may have: the rest divided by the members that have not reached their part."""

    __slots__ = ("_members", "_tasks", "per_member")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self._divide()

    def _divide(self) -> None:
        self.per_member = -(-self._tasks // self._members) if self._members else 0

    def reached(self, count: int) -> None:
        """Take a member out that has so many tasks, if these are its part."""
        if count == self.per_member:
            self._members -= 1
            self._tasks -= count
            self._divide()


class _Process:
    """One process: its members, and the tasks of all of them."""

    __slots__ = ("_by_load", "_count", "counts", "load", "tasks")

    def __init__(self, member_ids: Iterable[str]) -> None:
        self.counts = dict.fromkeys(hash_map_order(member_ids), 0)
        """The number of tasks by member id."""
        self.tasks: set[TaskId] = set()
        self.load = 0.0
        self._count = 0
        self._by_load: BinaryHeap[str] | None = None

    def add_task(self, member_id: str, task: TaskId) -> int:
        """Give a task to a member; return how many it has now."""
        self._by_load = None
        return self._add(member_id, task)

    def add_task_to_least_loaded(self, task: TaskId) -> tuple[str, int]:
        """Give a task to the member that has the fewest; return it, and how many it has now."""
        if self._by_load is None:
            self._by_load = BinaryHeap()
            for member_id, count in self.counts.items():
                self._by_load.add(member_id, count)
        member_id = self._by_load.poll()
        count = self._add(member_id, task)
        self._by_load.add(member_id, count)
        return member_id, count

    def _add(self, member_id: str, task: TaskId) -> int:
        self.tasks.add(task)
        self._count += 1
        self.load = self._count / len(self.counts)
        count = self.counts[member_id] = self.counts[member_id] + 1
        return count


class _Assignment:
    """The assignment in progress."""

    def __init__(
        self,
        members: Mapping[str, AssignedMember],
        subtopologies: Mapping[str, AssignedSubtopology],
        standby_replicas: int,
    ) -> None:
        self._members = members
        self._standby_replicas = standby_replicas
        active = sum(subtopology.tasks for subtopology in subtopologies.values())
        stateful = sum(subtopology.tasks for subtopology in subtopologies.values() if subtopology.is_stateful)
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + stateful * standby_replicas, len(members))
        self._processes: dict[str, _Process] = {}
        self._ran_by: dict[TaskId, str] = {}
        self._have_state: dict[TaskId, list[str]] = {}
        """The members that have state of a task, those with the best of it first."""
        self._active: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._standby: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))

    def read_members(self) -> Generator[None, None, None]:
        """Note the processes, and what their members run and store."""
        by_process: dict[str, list[str]] = {}
        have_state: dict[TaskId, list[_StateOfTask]] = defaultdict(list)
        member_ids = yield from hash_map_order_of_many(self._members)
        for member_id in member_ids:
            member = self._members[member_id]
            by_process.setdefault(member.process_id, []).append(member_id)
            for name, partitions in member.active.items():
                self._ran_by.update((TaskId(name, partition), member_id) for partition in partitions)
            for task, state in _states_of(member_id, member):
                have_state[task].append(state)
            yield
        process_ids = yield from computed_map_order(by_process, len(self._members))
        for some in slices(process_ids):
            for process_id in some:
                self._processes[process_id] = _Process(by_process[process_id])
            yield
        for task, states in have_state.items():
            states.sort(key=_best_first)
            self._have_state[task] = [state.member_id for state in states]

    def result(self) -> Steps:
        """Return the tasks of each member."""
        tasks: dict[str, Tasks] = {}
        for some in slices(self._members):
            for member_id in some:
                active, standby = self._active.get(member_id), self._standby.get(member_id)
                tasks[member_id] = Tasks(_frozen_sets(active), _frozen_sets(standby))
            yield
        return tasks

    # ---- active tasks

    def assign_active(self, tasks: Iterable[TaskId]) -> Generator[None, None, None]:
        """Give every task to one member."""
        left = sorted(tasks, key=lambda task: (task.partition, task.subtopology_id))
        yield
        left = yield from self._keep(left, self._runner_of)
        left = yield from self._keep(left, self._member_with_state_of)
        left.sort()
        heap = self._processes_by_load()
        for number, task in enumerate(left, 1):
            process = heap.poll()
            member_id, count = process.add_task_to_least_loaded(task)
            self._added_active(member_id, task, count)
            heap.add(process, process.load)
            if not number % SLICE:
                yield

    def _keep(
        self, tasks: Sequence[TaskId], preferred: Callable[[TaskId], str | None]
    ) -> Generator[None, None, list[TaskId]]:
        """Give tasks to the members that are preferred and have room; return the others."""
        left: list[TaskId] = []
        for number, task in enumerate(tasks, 1):
            member_id = preferred(task)
            if member_id is not None and self._has_room(member_id, self._active_quota):
                count = self._process_of(member_id).add_task(member_id, task)
                self._added_active(member_id, task, count)
            else:
                left.append(task)
            if not number % SLICE:
                yield
        return left

    def _added_active(self, member_id: str, task: TaskId, count: int) -> None:
        self._active[member_id][task.subtopology_id].add(task.partition)
        self._active_quota.reached(count)
        self._quota.reached(count)

    def _runner_of(self, task: TaskId) -> str | None:
        return self._ran_by.get(task)

    def _member_with_state_of(self, task: TaskId) -> str | None:
        return self._least_loaded(task, but_of_other_process=False)

    # ---- standby tasks

    def assign_standbys(self, tasks: Iterable[TaskId]) -> Generator[None, None, None]:
        """Give every task to as many more processes as there are standby replicas, if there are so many."""
        left: list[tuple[TaskId, int]] = []
        ordered = sorted(tasks, key=lambda task: (task.partition, task.subtopology_id), reverse=True)
        for number, task in enumerate(ordered, 1):
            for replica in range(self._standby_replicas):
                if not self._keep_standby(task):
                    left.append((task, self._standby_replicas - replica))
                    break
            if not number % SLICE:
                yield
        left.sort(reverse=True)
        heap = self._processes_by_load()
        for number, (task, replicas) in enumerate(left, 1):
            for _ in range(replicas):
                if not self._assign_standby(heap, task):
                    break
            if not number % SLICE:
                yield

    def _keep_standby(self, task: TaskId) -> bool:
        """Give a task to the member that ran it, or to one with its state, if it has room."""
        member_id = self._runner_of(task)
        if (
            member_id is None
            or task in self._process_of(member_id).tasks
            or not self._has_room(member_id, self._quota)
        ):
            member_id = self._least_loaded(task, but_of_other_process=True)
            if member_id is None or not self._has_room(member_id, self._quota):
                return False
        count = self._process_of(member_id).add_task(member_id, task)
        self._added_standby(member_id, task, count)
        return True

    def _assign_standby(self, heap: BinaryHeap[_Process], task: TaskId) -> bool:
        """Give a task to the process with the lowest load that does not have it."""
        passed: list[_Process] = []
        found = False
        while heap and not found:
            process = heap.poll()
            passed.append(process)
            if task not in process.tasks:
                member_id, count = process.add_task_to_least_loaded(task)
                self._added_standby(member_id, task, count)
                found = True
        for process in reversed(passed):
            heap.add(process, process.load)
        return found

    def _added_standby(self, member_id: str, task: TaskId, count: int) -> None:
        self._standby[member_id][task.subtopology_id].add(task.partition)
        self._quota.reached(count)

    # ---- members

    def _processes_by_load(self) -> BinaryHeap[_Process]:
        heap: BinaryHeap[_Process] = BinaryHeap()
        for process in self._processes.values():
            heap.add(process, process.load)
        return heap

    def _process_of(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _has_room(self, member_id: str, quota: _Quota) -> bool:
        return self._process_of(member_id).counts[member_id] < quota.per_member

    def _least_loaded(self, task: TaskId, *, but_of_other_process: bool) -> str | None:
        """Return the member with state of the task that has the lowest load, as its process; else None."""
        found: str | None = None
        lowest = (float("inf"), float("inf"))
        for member_id in self._have_state.get(task, ()):
            process = self._process_of(member_id)
            if but_of_other_process and task in process.tasks:
                continue
            load = (process.load, process.counts[member_id])
            if found is None or (load[0] < lowest[0] and load[1] < lowest[1]):
                found, lowest = member_id, load
        return found


def _frozen_sets(tasks: Mapping[str, set[int]] | None) -> TaskSets:
    return {name: frozenset(partitions) for name, partitions in (tasks or {}).items()}
