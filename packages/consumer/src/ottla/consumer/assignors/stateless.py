"""The assignors that keep nothing between rebalances: range and round-robin.

Range splits topics with the same number of partitions alike, so that a member gets the same partition numbers
of each: equal keys stay together. Members get partitions of their racks if neither the balance nor this
co-partitioning suffers (KIP-881).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from ottla.consumer.assignors.assignor import (
    Assigned,
    MemberSubscription,
    RebalanceProtocol,
    TopicRacks,
    uses_racks,
)
from ottla.protocol.topics import TopicPartition

Given = dict[str, list[TopicPartition]]


class RangeAssignor:
    """Splits each topic into ranges."""

    name = "range"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return None: the assignor needs no data of members."""
        return None

    def assign(self, topics: TopicRacks, members: Mapping[str, MemberSubscription]) -> Given:
        """Return each member's partitions."""
        given: Given = {member_id: [] for member_id in members}
        shares = [_Share(name, racks, members) for name, racks in topics.items() if racks]
        with_racks = any(share.uses_racks for share in shares)
        if with_racks:
            _assign_by_rack(shares, given)
        for share in shares:
            share.assign_ranges(given, lambda _member, _index: True)
        if with_racks:
            for partitions in given.values():
                partitions.sort()
        return given


class _Share:
    """A topic during the assignment: its unassigned partitions, and how many each member may still get."""

    def __init__(
        self, topic: str, racks: Sequence[frozenset[str]], members: Mapping[str, MemberSubscription]
    ) -> None:
        self.topic = topic
        self.racks = racks
        readers = [member_id for member_id, member in members.items() if topic in member.topics]
        readers.sort(key=lambda member_id: members[member_id].order(member_id))
        self.readers = {member_id: members[member_id].rack for member_id in readers}
        self.left = list(range(len(racks)))
        self._counts = dict.fromkeys(readers, 0)
        self._each, self._extra = divmod(len(racks), len(readers)) if readers else (0, 0)
        self.uses_racks = uses_racks({rack for rack in self.readers.values() if rack}, racks)

    def room(self, member_id: str) -> int:
        """Return how many more partitions a member may get."""
        return max(0, self._each + (self._extra > 0) - self._counts[member_id])

    def matches(self, member_id: str, index: int) -> bool:
        """Return whether a replica is in the member's rack, or the member has none."""
        rack = self.readers[member_id]
        return not rack or rack in self.racks[index]

    def give(self, member_id: str, indexes: Sequence[int], given: Given) -> None:
        """Assign partitions to a member."""
        given[member_id] += (TopicPartition(self.topic, index) for index in indexes)
        self._counts[member_id] += len(indexes)
        if self._counts[member_id] > self._each:
            self._extra -= 1
        taken = set(indexes)
        self.left = [index for index in self.left if index not in taken]

    def assign_ranges(self, given: Given, may: Callable[[str, int], bool]) -> None:
        """Assign every member as many partitions as it may still get, of those that `may` allows."""
        for member_id in self.readers:
            indexes = [index for index in self.left if may(member_id, index)][: self.room(member_id)]
            if indexes:
                self.give(member_id, indexes, given)


def _assign_by_rack(shares: list[_Share], given: Given) -> None:
    alike: dict[tuple[object, int], list[_Share]] = defaultdict(list)
    for share in shares:
        # As in Java a topic counts none of its partitions here while none of its readers has a rack.
        counted = len(share.racks) if any(share.readers.values()) else 0
        alike[tuple(share.readers.items()), counted].append(share)
    for (_, partitions), group in alike.items():
        if len(group) > 1:
            _assign_alike(group, partitions, given)
        elif group[0].uses_racks:
            group[0].assign_ranges(given, group[0].matches)


def _assign_alike(shares: list[_Share], partitions: int, given: Given) -> None:
    """Assign partitions of one number, of all topics, to the first member in a rack of each of them."""
    remaining = list(shares[0].readers)
    for index in range(partitions):
        near = (
            member_id
            for member_id in remaining
            if all(share.matches(member_id, index) and share.room(member_id) for share in shares)
        )
        if (member_id := next(near, None)) is None:
            continue
        for share in shares:
            share.give(member_id, [index], given)
        if not any(share.room(member_id) for share in shares):
            remaining.remove(member_id)


class RoundRobinAssignor:
    """Deals the partitions of all topics out; a member that does not read a topic is passed over."""

    name = "roundrobin"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return nothing: members need not be known for this."""
        return None

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        """Return each member's partitions."""
        given: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        turns = sorted(members, key=lambda member_id: members[member_id].order(member_id))
        turn = 0
        for topic in sorted(topics):
            readers = {member_id for member_id in turns if topic in members[member_id].topics}
            for index in range(len(topics[topic]) if readers else 0):
                while turns[turn] not in readers:
                    turn = (turn + 1) % len(turns)
                given[turns[turn]].append(TopicPartition(topic, index))
                turn = (turn + 1) % len(turns)
        return given
