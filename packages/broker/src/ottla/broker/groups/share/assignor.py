"""The assignor `simple` of share groups: every partition has a member, and all members have about as many.

With more members than partitions several members share each partition. What a member has it keeps, as far as
the balance allows. Where several choices are as good it takes the one of Apache Kafka, which follows from the
order of Java's collections: a group that moves between the two keeps its assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.streams.java_collections import HashMap

SIMPLE: Final = "simple"

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
Partition: TypeAlias = tuple[UUID, int]
_Members: TypeAlias = HashMap[int, None]
"""Members by their places in the group."""
_Readers: TypeAlias = HashMap[Partition, _Members]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, Iterable[int]],
    current: Mapping[str, Assignment],
) -> dict[str, dict[UUID, frozenset[int]]]:
    """Return the partitions of each member; `partitions` are those that can be assigned, by topic.

    The order of the members decides which of them has one partition more.
    """
    read = frozenset[UUID]().union(*subscriptions.values())
    names = list(subscriptions)
    owned = {
        place: [
            (topic, number)
            for topic, numbers in sorted(current.get(name, {}).items())
            if topic in read
            for number in sorted(numbers)
        ]
        for place, name in enumerate(names)
    }
    found: dict[int, dict[UUID, set[int]]] = {place: {} for place in owned}
    for division in _divisions(list(subscriptions.values()), partitions, owned):
        for place, kept in division.run().items():
            for topic, number in kept:
                found[place].setdefault(topic, set()).add(number)
    return {
        names[place]: {topic: frozenset(numbers) for topic, numbers in topics.items()}
        for place, topics in found.items()
    }


def _divisions(
    subscriptions: Sequence[frozenset[UUID]],
    partitions: Mapping[UUID, Iterable[int]],
    owned: Mapping[int, Collection[Partition]],
) -> Iterator[_Division]:
    """Iterate over the divisions: topics with other readers have their own, to be balanced among them."""
    topics = sorted(frozenset[UUID]().union(*subscriptions))
    if len(set(subscriptions)) <= 1:
        yield _Division(list(owned), _all(topics, partitions), owned, _hash_of_partition)
        return
    for topic in topics:
        readers = [place for place, read in enumerate(subscriptions) if topic in read]
        own = {place: [had for had in mine if had[0] == topic] for place, mine in owned.items()}
        yield _Division(readers, _all([topic], partitions), own, _number_of)


def _all(topics: Iterable[UUID], partitions: Mapping[UUID, Iterable[int]]) -> list[Partition]:
    return [(topic, number) for topic in topics for number in sorted(partitions.get(topic, ()))]


class _Division:
    """The division of partitions among members of a group, each known by its place."""

    def __init__(
        self,
        readers: Sequence[int],
        partitions: Sequence[Partition],
        owned: Mapping[int, Collection[Partition]],
        hash_of: Callable[[Partition], int],
    ) -> None:
        """`owned` also has members that read none of the partitions any more."""
        self._partitions = partitions
        self._owned = owned
        self._sharing = ceil(len(readers) / len(partitions)) if partitions else 0
        exact = self._sharing * len(partitions) / len(readers) if readers else 0.0
        self._wanted = {
            place: ceil(exact * (index + 1)) - ceil(exact * index) for index, place in enumerate(readers)
        }
        """How many partitions each member should have."""
        self._hash_of = hash_of
        self._members: _Readers = HashMap(self._hash_of, _presized(len(partitions)))
        """The members of each partition."""
        self._has: dict[int, HashMap[Partition, None]] = {}

    def run(self) -> Mapping[int, Iterable[Partition]]:
        """Return the partitions of each member."""
        for place, mine in self._owned.items():
            for partition in mine:
                self._members.compute_if_absent(partition, _no_members).put(place, None)
                self._of(place).put(partition, None)
        self._take_from_those_with_too_many()
        self._take_from_partitions_with_too_many()
        for partition in self._partitions:
            self._members.compute_if_absent(partition, _no_members)
        self._give_the_rest()
        return self._has

    def _of(self, place: int) -> HashMap[Partition, None]:
        return self._has.setdefault(place, HashMap(self._hash_of))

    def _take_from_those_with_too_many(self) -> None:
        for place, mine in self._has.items():
            for partition in list(mine)[: max(0, len(mine) - self._wanted.get(place, 0))]:
                mine.remove(partition)
                self._members[partition].remove(place)

    def _take_from_partitions_with_too_many(self) -> None:
        for partition, members in self._members.items():
            for place in list(members)[: max(0, len(members) - self._sharing)]:
                members.remove(place)
                self._has[place].remove(partition)

    def _give_the_rest(self) -> None:
        """Give partitions to members with too few, one after the other around."""
        unfilled = [place for place in self._wanted if len(self._of(place)) < self._wanted[place]]
        at, has_given = 0, False
        for partition, members in self._members.items():
            missing = self._sharing - len(members)
            while missing > 0 and unfilled:
                if at >= len(unfilled):
                    if not has_given:
                        break
                    at, has_given = 0, False
                place = unfilled[at]
                at += 1
                if place in members:
                    continue
                mine = self._of(place)
                mine.put(partition, None)
                missing, has_given = missing - 1, True
                if len(mine) >= self._wanted[place]:
                    at -= 1
                    del unfilled[at]
            if not unfilled:
                return


def _no_members() -> _Members:
    return HashMap(int)


def _number_of(partition: Partition) -> int:
    return partition[1]


def _hash_of_partition(partition: Partition) -> int:
    """Return the `hashCode` of Java's record of a topic's id and a partition."""
    topic = partition[0].int
    halves = (topic >> 64) ^ (topic & 0xFFFFFFFF_FFFFFFFF)
    return 31 * ((halves >> 32) ^ (halves & 0xFFFFFFFF)) + partition[1]


def _presized(count: int) -> int:
    """Return the capacity that Kafka gives a map for so many keys."""
    return int((count + 1) / 0.75 + 1)
