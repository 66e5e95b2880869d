"""Sticky assignment for members with different subscriptions.

Members keep partitions of topics that they still read; the others are assigned to the members with the
fewest. Then partitions are moved from members with more to members with fewer, as long as the balance
improves.

Some results of the Java client depend on the iteration order of its HashMap: buckets by hash, the keys of a
bucket in the order of insertion; a resize keeps that order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from ottla.consumer.assignors.assignor import Assigned, MemberSubscription, Racks, TopicRacks
from ottla.protocol.topics import TopicPartition

Given = dict[str, list[TopicPartition]]

_Pair = tuple[str, str]

T = TypeVar("T")

FIRST_CAPACITY = 16


class _BySize:
    """Member ids, sorted by their number of partitions."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, str]] = []

    def add(self, member_id: str, size: int) -> None:
        insort(self._keys, (size, member_id))

    def remove(self, member_id: str, size: int) -> None:
        place = bisect_left(self._keys, (size, member_id))
        if place < len(self._keys) and self._keys[place] == (size, member_id):
            del self._keys[place]

    def __iter__(self) -> Iterator[str]:
        return (member_id for _, member_id in self._keys)

    def spread(self) -> int:
        """Return by how much the largest size exceeds the smallest."""
        return self._keys[-1][0] - self._keys[0][0] if self._keys else 0


class GeneralStickyAssignment:
    """Builds one assignment; call `build` once.

    `previous` has the owners of partitions in an older generation than that of their present owner.
    """

    def __init__(
        self,
        topics: TopicRacks,
        racks: Racks,
        owned: Mapping[str, list[TopicPartition]],
        members: Mapping[str, MemberSubscription],
        previous: Mapping[TopicPartition, str],
    ) -> None:
        self._sizes = {name: len(listed) for name, listed in topics.items()}
        self._racks = racks
        self._previous = previous
        self._reads = {
            member_id: [topic for topic in member.topics if topic in topics]
            for member_id, member in members.items()
        }
        self._readers: dict[str, list[str]] = {name: [] for name in topics}
        for member_id, names in self._reads.items():
            for name in names:
                self._readers[name].append(member_id)
        # Topics with few readers first: they have the fewest choices.
        names = sorted(topics, key=lambda name: (len(self._readers[name]), name))
        self._all = [TopicPartition(name, index) for name in names for index in range(self._sizes[name])]
        self._given: Given = {member_id: [] for member_id in members}
        self._owner: dict[TopicPartition, str] = {}
        self._must_revoke = False
        for member_id, partitions in owned.items():
            self._keep(member_id, partitions)
        self._by_size = _BySize()
        self._movements = PartitionMovements()

    def build(self) -> Given:
        """Return each member's partitions."""
        left = [partition for partition in self._all if partition not in self._owner]
        fresh = not self._owner
        for member_id, partitions in self._given.items():
            self._by_size.add(member_id, len(partitions))
        if self._racks.matter:
            far = [partition for partition in left if not self._give(partition, near=True)]
        else:
            far = left
        for partition in far:
            self._give(partition, near=False)
        self._balance(left, fresh)
        return self._given

    def _keep(self, member_id: str, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            if partition.topic not in self._reads[member_id] or self._racks.mismatch(member_id, partition):
                self._must_revoke = True
                continue
            self._given[member_id].append(partition)
            self._owner[partition] = member_id

    def _give(self, partition: TopicPartition, *, near: bool) -> bool:
        """Assign a partition to the reader with the fewest; with `near`, only without a rack mismatch."""
        readers = set(self._readers[partition.topic])
        for member_id in self._by_size:
            if member_id in readers and not (near and self._racks.mismatch(member_id, partition)):
                self._take_in(partition, member_id)
                return True
        return False

    def _take_in(self, partition: TopicPartition, member_id: str) -> None:
        self._by_size.remove(member_id, len(self._given[member_id]))
        self._given[member_id].append(partition)
        self._owner[partition] = member_id
        self._by_size.add(member_id, len(self._given[member_id]))

    def _take_out(self, partition: TopicPartition, member_id: str) -> None:
        self._by_size.remove(member_id, len(self._given[member_id]))
        self._given[member_id].remove(partition)
        self._by_size.add(member_id, len(self._given[member_id]))

    # --- balancing

    def _balance(self, left: list[TopicPartition], fresh: bool) -> None:
        movable = [partition for partition in self._all if len(self._readers[partition.topic]) > 1]
        fixed = {member_id for member_id in self._given if not self._may_change(member_id)}
        for member_id in fixed:
            self._by_size.remove(member_id, len(self._given[member_id]))
        set_aside = {member_id: self._given.pop(member_id) for member_id in fixed}
        before = {member_id: list(partitions) for member_id, partitions in self._given.items()}
        if not self._must_revoke:
            # First only unassigned partitions: the others may stay where they are.
            self._move_while_better([partition for partition in left if partition in set(movable)])
        moved = self._move_while_better(movable)
        if not fresh and moved and _imbalance(self._given) >= _imbalance(before):
            self._given = before
        self._given |= set_aside

    def _may_change(self, member_id: str) -> bool:
        """Return whether a member can gain or lose a partition."""
        most = sum(self._sizes[name] for name in self._reads[member_id])
        mine = self._given[member_id]
        return len(mine) < most or any(len(self._readers[partition.topic]) > 1 for partition in mine)

    def _is_balanced(self) -> bool:
        if self._by_size.spread() <= 1:
            return True
        largest: dict[str, int] = defaultdict(int)
        for partitions in self._given.values():
            for topic in {partition.topic for partition in partitions}:
                largest[topic] = max(largest[topic], len(partitions))
        return not any(
            largest[topic] > len(self._given[member_id]) + 1
            for member_id in self._given
            for topic in self._reads[member_id]
        )

    def _move_while_better(self, partitions: list[TopicPartition]) -> bool:
        """Move partitions to members with fewer, until nothing changes; return whether any was moved."""
        moved_any, moved = False, True
        while moved:
            moved = False
            for partition in partitions:
                if self._is_balanced():
                    break
                if (target := self._better_owner(partition)) is not None:
                    self._move(partition, target)
                    moved = moved_any = True
        return moved_any

    def _better_owner(self, partition: TopicPartition) -> str | None:
        owner = self._owner[partition]
        size = len(self._given[owner])
        before = self._previous.get(partition)
        if before is not None and before in self._given and size > len(self._given[before]) + 1:
            return before
        readers = self._readers[partition.topic]
        # A reader with fewer exists, in any rack: the one with the fewest gets it.
        if any(size > len(self._given[other]) + 1 for other in readers):
            reading = set(readers)
            return next(member_id for member_id in self._by_size if member_id in reading)
        return None

    def _move(self, partition: TopicPartition, target: str) -> None:
        moving = self._movements.instead_of(partition, self._owner[partition], target)
        source = self._owner[moving]
        self._movements.moved(moving, source, target)
        self._take_out(moving, source)
        self._take_in(moving, target)


def previous_owners(claims: Mapping[str, Assigned]) -> dict[TopicPartition, str]:
    """Return the owner of each partition in the newest generation before the present one."""
    newest = max((claim.generation for claim in claims.values()), default=-1)
    found: dict[TopicPartition, tuple[str, int]] = {}
    for member_id, claim in claims.items():
        if claim.generation >= newest:
            continue
        for partition in claim.partitions:
            if partition not in found or claim.generation > found[partition][1]:
                found[partition] = (member_id, claim.generation)
    return {partition: member_id for partition, (member_id, _) in found.items()}


def _imbalance(given: Given) -> int:
    """Return the sum of the differences in size over all pairs of members."""
    sizes = sorted(len(partitions) for partitions in given.values())
    return sum(size * (2 * place - len(sizes) + 1) for place, size in enumerate(sizes))


class PartitionMovements:
    """Prevents members from swapping partitions of one topic, which improves nothing.

    To move one from A to B after another one of the topic moved from B to A, that other one moves back.
    """

    def __init__(self) -> None:
        self._pair: dict[TopicPartition, _Pair] = {}
        self._moved: dict[tuple[str, _Pair], dict[TopicPartition, None]] = defaultdict(dict)
        self._most: dict[tuple[str, _Pair], int] = defaultdict(int)

    def instead_of(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move instead of `partition`; usually that one itself."""
        if partition in self._pair:
            source = self._pair[partition][0]
        key = (partition.topic, (target, source))
        if not self._moved.get(key):
            return partition
        return hash_order(self._moved[key], partition_hash, self._most[key])[0]

    def moved(self, partition: TopicPartition, source: str, target: str) -> None:
        """Record a move; a move back to the original member removes the record."""
        before = self._pair.pop(partition, None)
        if before is not None:
            key = (partition.topic, before)
            del self._moved[key][partition]
            if not self._moved[key]:
                del self._moved[key], self._most[key]
            source = before[0]
        if source != target:
            self._remember(partition, (source, target))

    def _remember(self, partition: TopicPartition, pair: _Pair) -> None:
        key = (partition.topic, pair)
        self._pair[partition] = pair
        self._moved[key][partition] = None
        self._most[key] = max(self._most[key], len(self._moved[key]))


def string_hash(text: str) -> int:
    """Return `String.hashCode()`, as an unsigned number."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


def partition_hash(partition: TopicPartition) -> int:
    """Return `TopicPartition.hashCode()`, as an unsigned number."""
    return (31 * (31 + partition.partition) + string_hash(partition.topic)) & 0xFFFFFFFF


def hash_order(keys: Iterable[T], hash_of: Callable[[T], int], most: int = 0) -> list[T]:
    """Return keys, given in the order of insertion, as a HashMap that once held `most` gives them."""
    listed = list(keys)
    capacity = FIRST_CAPACITY
    while max(len(listed), most) > capacity * 3 // 4:
        capacity *= 2

    def bucket(key: T) -> int:
        value = hash_of(key)
        return (value ^ (value >> 16)) & (capacity - 1)

    return sorted(listed, key=bucket)
