"""The assignors of the coordinator: `uniform` and `range`, as pure generators over the members of a group.

Each yields between slices of its work and returns the partitions of each member. They make the same
assignments as Kafka's for members, topics and partitions in the same order; here members keep the order of
the group, topics have the order of their ids, and partitions that of their numbers. `uniform` moves as few
partitions as it can, `range` gives each member neighbouring partitions, the same numbers of all topics that
have the same members. A large assignment is divided into parts: none of its writes takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from ottla.broker.runtime.loop_budget import SLICE, slices
from ottla.zookeeper.frozen_classes import frozen

T = TypeVar("T")

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""The partitions of a member by topic; no topic has an empty set."""
Steps: TypeAlias = Generator[None, None, dict[str, Assignment]]

NOTHING: Final[Assignment] = {}
_MOST_ROUNDS: Final = 16
_NOBODY: Final = -1
_MEMBER_COSTS: Final = 16
_TOPIC_COSTS: Final = 4
_PARTITIONS_FOR_ONE: Final = 8
_MOST_COSTS: Final = 2_048
"""About two milliseconds, where a cost of one is a microsecond."""


class MemberSpec(NamedTuple):
    """A member as an assignor sees it: what it reads, and what it shall have had until now."""

    topics: Collection[UUID]
    assigned: Assignment = NOTHING
    instance_id: str | None = None


class GroupSpec(NamedTuple):
    """A group as an assignor sees it."""

    members: Mapping[str, MemberSpec]
    partition_counts: Mapping[UUID, int]
    """The partitions of each topic that a member reads."""
    is_homogeneous: bool
    """Whether all members read the same topics."""


Assignor: TypeAlias = Callable[[GroupSpec], Steps]


def uniform(group: GroupSpec) -> Steps:
    """Give all members as many partitions, give or take one; each keeps what it has where that fits."""
    if not group.members:
        return {}
    if group.is_homogeneous:
        return (yield from _uniform_of_same_topics(group))
    return (yield from _Balance(group).run())


def range_(group: GroupSpec) -> Steps:
    """Give each member neighbouring partitions of each topic that it reads."""
    readers: dict[UUID, int] = {}
    for some in _by_topics(group.members.values(), lambda member: member):
        for member in some:
            for topic in member.topics:
                readers[topic] = readers.get(topic, 0) + 1
        yield
    ranges = {topic: _Ranges(group.partition_counts[topic], count) for topic, count in readers.items()}
    assignments: dict[str, Assignment] = {}
    for names in _by_topics(_in_order_of_instances(group.members), group.members.__getitem__):
        for member_id in names:
            assignments[member_id] = _next_ranges(group.members[member_id].topics, ranges)
        yield
    return assignments


_number: Final = attrgetter("int")
"""The order of ids is that of their numbers, which compare much faster."""

ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": range_}


def _by_topics(items: Iterable[T], member_of: Callable[[T], MemberSpec]) -> Iterator[list[T]]:
    """Divide members so that the members of a slice read about a thousand topics together."""
    some: list[T] = []
    topics = 0
    for item in items:
        some.append(item)
        topics += 8 + len(member_of(item).topics)
        if topics >= 8 * SLICE:
            yield some
            some, topics = [], 0
    yield some


def _next_ranges(topics: Collection[UUID], ranges: Mapping[UUID, _Ranges]) -> Assignment:
    assigned = {topic: ranges[topic].take() for topic in topics}
    return {topic: partitions for topic, partitions in assigned.items() if partitions}


class _Ranges:
    """The ranges of one topic that are still to be given out."""

    __slots__ = ("_extra", "_next", "_partitions", "_quota")

    def __init__(self, partitions: int, readers: int) -> None:
        self._partitions = partitions
        self._quota, self._extra = divmod(partitions, readers)
        self._next = 0

    def take(self) -> frozenset[int]:
        start, quota = self._next, self._quota
        if self._extra > 0:
            quota, self._extra = quota + 1, self._extra - 1
        self._next = min(start + quota, self._partitions)
        return frozenset(range(start, self._next))


def _in_order_of_instances(members: Mapping[str, MemberSpec]) -> list[str]:
    """Static members come first, by instance id; so a member that returns has the range it had."""
    return sorted(
        members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name)
    )


# ---- uniform, where all members read the same topics


def _uniform_of_same_topics(group: GroupSpec) -> Steps:
    topics = sorted(next(iter(group.members.values())).topics, key=_number)
    if not topics:
        return {}
    owned: dict[UUID, set[int]] = {topic: set() for topic in topics}
    for some in slices(group.members.values()):
        for member in some:
            for topic, partitions in member.assigned.items():
                if topic in owned:
                    owned[topic] |= partitions
        yield
    free: list[tuple[UUID, int]] = []
    for topic in topics:
        taken = owned[topic]
        free += [(topic, index) for index in range(group.partition_counts[topic]) if index not in taken]
        yield
    total = sum(group.partition_counts[topic] for topic in topics)
    kept, unfilled = yield from _keep(group.members, owned, free, total)
    yield from _fill(kept, unfilled, free)
    return kept


def _keep(
    members: Mapping[str, MemberSpec],
    topics: Collection[UUID],
    free: list[tuple[UUID, int]],
    total: int,
) -> Generator[None, None, tuple[dict[str, Assignment], list[tuple[str, int]]]]:
    """Return the partitions that each keeps within its quota, and members with room; the rest is `free`."""
    quota, extra = divmod(total, len(members))
    kept: dict[str, Assignment] = {}
    unfilled: list[tuple[str, int]] = []
    behind = len(members)
    for some in slices(members.items()):
        for member_id, member in some:
            room = quota + 1 if extra > 0 else quota
            has_extra = extra > 0
            kept[member_id], room = _keep_within(member.assigned, topics, room, free)
            if room > 0 and has_extra and behind > extra:
                room, has_extra = room - 1, False
            if room > 0:
                unfilled.append((member_id, room))
            extra -= has_extra
            behind -= 1
        yield
    return kept, unfilled


def _keep_within(
    assigned: Assignment, topics: Collection[UUID], room: int, free: list[tuple[UUID, int]]
) -> tuple[Assignment, int]:
    """Return the partitions that fit into `room`, and the room that is left; the others become `free`."""
    kept: dict[UUID, frozenset[int]] = {}
    for topic in assigned if len(assigned) < 2 else sorted(assigned, key=_number):
        partitions = assigned[topic]
        if topic not in topics:
            continue
        if len(partitions) <= room:
            kept[topic] = partitions
            room -= len(partitions)
            continue
        ordered = sorted(partitions)
        if room > 0:
            kept[topic] = frozenset(ordered[:room])
        free += [(topic, index) for index in ordered[room:]]
        room = 0
    return (assigned if len(kept) == len(assigned) and kept == assigned else kept), room


def _fill(
    kept: dict[str, Assignment], unfilled: Iterable[tuple[str, int]], free: list[tuple[UUID, int]]
) -> Generator[None, None, None]:
    """Give the free partitions to the members with room."""
    at = 0
    for some in slices(unfilled):
        for member_id, room in some:
            added: dict[UUID, set[int]] = {}
            for topic, index in free[at : at + room]:
                added.setdefault(topic, set()).add(index)
            at += room
            assigned = kept[member_id]
            more = {
                topic: assigned.get(topic, frozenset()) | partitions for topic, partitions in added.items()
            }
            kept[member_id] = {**assigned, **more}
        yield


# ---- uniform, where members read different topics


class _Balance:
    """Balances the partitions of members with different subscriptions, topic by topic, in several rounds."""

    def __init__(self, group: GroupSpec) -> None:
        self._group = group
        self._ids = list(group.members)
        self._sizes = [0] * len(self._ids)
        self._readers: dict[UUID, list[int]] = {}
        self._owners: dict[UUID, list[int]] = {}
        """Topic -> for each partition the number of its member."""

    def run(self) -> Steps:
        for some in _by_topics(enumerate(self._group.members.values()), lambda numbered: numbered[1]):
            for number, member in some:
                for topic in member.topics:
                    self._readers.setdefault(topic, []).append(number)
            yield
        if not self._readers:
            return {}
        for topic in self._readers:
            self._owners[topic] = [_NOBODY] * self._group.partition_counts[topic]
        yield from self._keep()
        yield from self._assign_free()
        yield from self._balance()
        return (yield from self._assignments())

    def _keep(self) -> Generator[None, None, None]:
        for number, member in enumerate(self._group.members.values()):
            for topic, partitions in member.assigned.items():
                if topic in member.topics:
                    self._sizes[number] += len(partitions)
                    owners = self._owners[topic]
                    # This broker may not know yet of partitions that another coordinator has assigned.
                    owners += [_NOBODY] * (max(partitions, default=-1) + 1 - len(owners))
                    for index in partitions:
                        owners[index] = number
            if number % SLICE == 0:
                yield

    def _sorted(self, topics: Iterable[UUID]) -> list[UUID]:
        """The topics with the most partitions for each reader first."""
        counts, readers = self._group.partition_counts, self._readers
        return sorted(
            topics, key=lambda topic: (-counts[topic] / len(readers[topic]), len(readers[topic]), topic.int)
        )

    def _assign_free(self) -> Generator[None, None, None]:
        free: dict[UUID, list[int]] = {}
        for some in slices(self._owners.items()):
            for topic, owners in some:
                if indexes := [index for index, owner in enumerate(owners) if owner == _NOBODY]:
                    free[topic] = indexes
            yield
        for topic in self._sorted(free):
            load = _Load(self._readers[topic], self._sizes)
            for index in free[topic]:
                self._give(topic, index, load.next_least())
            yield

    def _give(self, topic: UUID, index: int, number: int) -> None:
        owners = self._owners[topic]
        if owners[index] != _NOBODY:
            self._sizes[owners[index]] -= 1
        owners[index] = number
        self._sizes[number] += 1

    def _balance(self) -> Generator[None, None, None]:
        topics = self._sorted(topic for topic, readers in self._readers.items() if len(readers) > 1)
        last_moved: UUID | None = None
        for _ in range(_MOST_ROUNDS if topics else 0):
            for topic in topics:
                if topic == last_moved:
                    return
                if self._balance_topic(topic) > 0 or last_moved is None:
                    last_moved = topic
                yield

    def _balance_topic(self, topic: UUID) -> int:
        """Move partitions of one topic from members with many to members with few; return how many."""
        load = _Load(self._readers[topic], self._sizes)
        if load.imbalance <= 1:
            return 0
        owners, moved = self._owners[topic], 0
        movable: dict[int, list[int]] = {}
        for index, owner in enumerate(owners):
            movable.setdefault(owner, []).append(index)
        while not load.is_balanced():
            most = load.next_most()
            while most != _NOBODY and not movable.get(most):
                load.exclude_most()
                most = load.next_most()
            if most == _NOBODY:
                break
            index = movable[most].pop()
            least = load.next_least()
            if load.is_balanced():
                break
            self._give(topic, index, least)
            moved += 1
        return moved

    def _assignments(self) -> Steps:
        gathered: list[dict[UUID, list[int]]] = [{} for _ in self._ids]
        for topic, owners in self._owners.items():
            for index, owner in enumerate(owners):
                gathered[owner].setdefault(topic, []).append(index)
            yield
        assignments: dict[str, Assignment] = {}
        for some in slices(zip(self._ids, gathered, strict=True)):
            for member_id, topics in some:
                assignments[member_id] = {topic: frozenset(indexes) for topic, indexes in topics.items()}
            yield
        return assignments


class _Load:
    """The readers of a topic in the order of how many partitions they have, taken from both ends.

    From each end a range of readers with as many partitions is gone through again and again: with each pass
    their number rises by one at the lower end, and falls by one at the upper end.
    """

    def __init__(self, readers: Collection[int], sizes: list[int]) -> None:
        self._sizes = sizes
        self._sorted = sorted(readers, key=lambda number: (sizes[number], number))
        least, most = sizes[self._sorted[0]], sizes[self._sorted[-1]]
        self.imbalance = most - least
        self._least_end, self._least_size, self._next_least = 0, least - 1, 0
        self._most_start = self._most_end = len(self._sorted)
        self._most_size, self._next_most = most + 1, len(self._sorted) - 1

    def is_balanced(self) -> bool:
        """Return whether no member has more than one partition more than another."""
        return self._most_size - self._least_size <= 1

    def next_least(self) -> int:
        if self._next_least >= self._least_end:
            self._least_size += 1
            members, sizes = self._sorted, self._sizes
            while self._least_end < len(members) and sizes[members[self._least_end]] == self._least_size:
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return self._sorted[self._next_least - 1]

    def next_most(self) -> int:
        """Return the next of the members with the most partitions; -1 if none is left."""
        if self._next_most < self._most_start:
            self._extend_most()
        if self._next_most < 0:
            return _NOBODY
        self._next_most -= 1
        return self._sorted[self._next_most + 1]

    def _extend_most(self) -> None:
        members, sizes = self._sorted, self._sizes
        if self._most_end <= self._most_start and self._most_start > 0:
            self._most_size = sizes[members[self._most_start - 1]]
        else:
            self._most_size -= 1
        while self._most_start > 0 and sizes[members[self._most_start - 1]] == self._most_size:
            self._most_start -= 1
        self._next_most = self._most_end - 1

    def exclude_most(self) -> None:
        """Take the member that was returned last out: it has no partition of the topic."""
        at, last = self._next_most + 1, self._most_end - 1
        self._sorted[at], self._sorted[last] = self._sorted[last], self._sorted[at]
        self._most_end = last


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
        if costs >= _MOST_COSTS:
            yield AssignmentPart(tuple(some))
            some, costs = [], 0
    if some:
        yield AssignmentPart(tuple(some))
    yield AssignmentPart((), epoch)
