"""The assignor `simple` of share groups: every partition has a member, and all members have about as many.

With more members than partitions several members share each partition. What a member has it keeps, as far as
the balance allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias
from uuid import UUID

SIMPLE: Final = "simple"

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
Partition: TypeAlias = tuple[UUID, int]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, Iterable[int]],
    current: Mapping[str, Assignment],
) -> dict[str, dict[UUID, frozenset[int]]]:
    """Return the partitions of each member; `partitions` are those that can be assigned, by topic."""
    if len(set(subscriptions.values())) <= 1:
        topics = next(iter(subscriptions.values()), frozenset())
        groups = [(list(subscriptions), _all(topics, partitions))]
    else:
        # Topics with other readers are divided by themselves, so that each is balanced among its readers.
        groups = [
            (
                [member for member, topics in subscriptions.items() if topic in topics],
                _all([topic], partitions),
            )
            for topic in dict.fromkeys(topic for topics in subscriptions.values() for topic in topics)
        ]
    found: dict[str, dict[UUID, set[int]]] = {member: {} for member in subscriptions}
    for members, wanted in groups:
        for member, (topic, number) in _divide(members, wanted, current):
            found[member].setdefault(topic, set()).add(number)
    return {
        member: {topic: frozenset(numbers) for topic, numbers in topics.items()}
        for member, topics in found.items()
    }


def _all(topics: Iterable[UUID], partitions: Mapping[UUID, Iterable[int]]) -> list[Partition]:
    return [(topic, number) for topic in sorted(topics) for number in sorted(partitions.get(topic, ()))]


def _divide(
    members: Sequence[str], partitions: Sequence[Partition], current: Mapping[str, Assignment]
) -> list[tuple[str, Partition]]:
    if not members or not partitions:
        return []
    sharing = ceil(len(members) / len(partitions))
    each = sharing * len(partitions) / len(members)
    room = {
        member: ceil(each * (index + 1)) - ceil(each * index) for index, member in enumerate(sorted(members))
    }
    readers: dict[Partition, set[str]] = {partition: set() for partition in partitions}
    for member in room:
        for partition in _kept(current.get(member, {}), readers):
            if room[member] and len(readers[partition]) < sharing:
                _give(member, partition, readers, room)
    for most in range(1, sharing + 1):  # first one reader for each, then the next
        for partition, present in readers.items():
            if len(present) < most:
                _find_reader(partition, present, readers, room)
    return [(member, partition) for partition, present in readers.items() for member in present]


def _kept(assignment: Assignment, readers: Mapping[Partition, set[str]]) -> list[Partition]:
    return [
        (topic, number)
        for topic, numbers in assignment.items()
        for number in sorted(numbers)
        if (topic, number) in readers
    ]


def _give(
    member: str, partition: Partition, readers: Mapping[Partition, set[str]], room: dict[str, int]
) -> None:
    readers[partition].add(member)
    room[member] -= 1


def _find_reader(
    partition: Partition, present: set[str], readers: Mapping[Partition, set[str]], room: dict[str, int]
) -> None:
    """Give a partition to the member with most room; one without a reader always gets one."""
    free = [member for member in room if member not in present]
    if not free:
        return
    member = max(free, key=lambda name: room[name])
    if room[member] > 0 or not present:
        _give(member, partition, readers, room)
