"""The assignor `simple` of share groups: every partition has a member, and all members have about as many.

With more members than partitions several members share each partition. What a member has it keeps, as far as
the balance allows. Where several choices are as good it takes the one of Apache Kafka, which follows from the
order of Java's collections: a group that moves between the two keeps its assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Final, TypeAlias
from uuid import UUID

from ottla.broker.groups.streams.java_collections import HashMap
from ottla.broker.runtime.loop_budget import slices

SIMPLE: Final = "simple"

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
Partition: TypeAlias = tuple[UUID, int]
_Members: TypeAlias = HashMap[int, None]
"""Members by their places in the group."""
_Readers: TypeAlias = HashMap[Partition, _Members]
_Owned: TypeAlias = dict[UUID, dict[int, list[int]]]


def assign(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, Iterable[int]],
    current: Mapping[str, Assignment],
) -> Generator[None, None, dict[str, Assignment]]:
    """Make the partitions of each member, in steps; `partitions` are those that can be assigned, by topic.

    The order of the members decides which of them has one partition more.
    """
    names = list(subscriptions)
    readers = yield from _readers_of(subscriptions.values())
    owned = yield from _owned(names, readers, current)
    found: list[dict[UUID, set[int]]] = [{} for _ in names]
    for division in _divisions(subscriptions, partitions, readers, owned):
        divided = yield from division.run()
        for some in slices((place, partition) for place, kept in divided.items() for partition in kept):
            for place, (topic, number) in some:
                found[place].setdefault(topic, set()).add(number)
            yield
    assigned: dict[str, Assignment] = {}
    for name, topics in zip(names, found, strict=True):
        assigned[name] = {topic: frozenset(numbers) for topic, numbers in topics.items()}
        yield
    return assigned


def _readers_of(
    subscriptions: Iterable[frozenset[UUID]],
) -> Generator[None, None, dict[UUID, list[int]]]:
    """Return the places of the members that read each topic."""
    readers: dict[UUID, list[int]] = {}
    for place, read in enumerate(subscriptions):
        for topic in read:
            readers.setdefault(topic, []).append(place)
        yield
    return readers


def _owned(
    names: Iterable[str], readers: Collection[UUID], current: Mapping[str, Assignment]
) -> Generator[None, None, _Owned]:
    """Return what each member has of the topics that are read, by topic and by the member's place."""
    owned: _Owned = {}
    for place, name in enumerate(names):
        for topic, numbers in current.get(name, {}).items():
            if topic in readers:
                owned.setdefault(topic, {})[place] = sorted(numbers)
        yield
    return owned


def _divisions(
    subscriptions: Mapping[str, frozenset[UUID]],
    partitions: Mapping[UUID, Iterable[int]],
    readers: Mapping[UUID, list[int]],
    owned: _Owned,
) -> Iterator[_Division]:
    """Iterate over the divisions: topics with other readers have their own, to be balanced among them."""
    topics = sorted(readers)
    places = range(len(subscriptions))
    if len(set(subscriptions.values())) <= 1:
        all_owned = [
            (place, (topic, number))
            for place in places
            for topic in topics
            for number in owned.get(topic, {}).get(place, ())
        ]
        yield _Division(places, _all(topics, partitions), all_owned, _hash_of_partition)
        return
    for topic in topics:
        own = [(place, (topic, number)) for place, mine in owned.get(topic, {}).items() for number in mine]
        yield _Division(readers[topic], _all([topic], partitions), own, _number_of)


def _all(topics: Iterable[UUID], partitions: Mapping[UUID, Iterable[int]]) -> list[Partition]:
    return [(topic, number) for topic in topics for number in sorted(partitions.get(topic, ()))]


class _Division:
    """The division of partitions among members of a group, each known by its place."""

    def __init__(
        self,
        readers: Sequence[int],
        partitions: Sequence[Partition],
        owned: Sequence[tuple[int, Partition]],
        hash_of: Callable[[Partition], int],
    ) -> None:
        """`owned`, in the order of members, also has some that read none of the partitions any more."""
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

    def run(self) -> Generator[None, None, Mapping[int, Iterable[Partition]]]:
        """Return the partitions of each member."""
        for some in slices(self._owned):
            for place, partition in some:
                self._members.compute_if_absent(partition, _no_members).put(place, None)
                self._of(place).put(partition, None)
            yield
        yield from self._take_from_those_with_too_many()
        yield from self._take_from_partitions_with_too_many()
        for others in slices(self._partitions):
            for partition in others:
                self._members.compute_if_absent(partition, _no_members)
            yield
        yield from self._give_the_rest()
        return self._has

    def _of(self, place: int) -> HashMap[Partition, None]:
        return self._has.setdefault(place, HashMap(self._hash_of))

    def _take_from_those_with_too_many(self) -> Generator[None, None, None]:
        for some in slices(self._has.items()):
            for place, mine in some:
                for partition in list(mine)[: max(0, len(mine) - self._wanted.get(place, 0))]:
                    mine.remove(partition)
                    self._members[partition].remove(place)
            yield

    def _take_from_partitions_with_too_many(self) -> Generator[None, None, None]:
        for partition, members in self._members.items():
            for place in list(members)[: max(0, len(members) - self._sharing)]:
                members.remove(place)
                self._has[place].remove(partition)
            yield

    def _give_the_rest(self) -> Generator[None, None, None]:
        """Give partitions to members with too few, one after the other around."""
        unfilled = [place for place in self._wanted if len(self._of(place)) < self._wanted[place]]
        at, has_given = 0, False
        for partition, members in self._members.items():
            yield
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
