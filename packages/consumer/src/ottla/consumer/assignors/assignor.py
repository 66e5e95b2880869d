"""The interface of assignors: their input with the racks of members and replicas, and their result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from ottla.protocol.topics import TopicPartition

NO_GENERATION = -1

TopicRacks = Mapping[str, Sequence[frozenset[str]]]
"""The topics that members subscribed to: for each partition, in order, the racks of its replicas."""


class RebalanceProtocol(IntEnum):
    """Whether members revoke all partitions before they join again, or only those of others (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


class Assigned(NamedTuple):
    """The last assignment of a member, and its generation."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription that a member sent as it joined.

    `owned` and `generation` are from its last generation; members of an eager group own nothing at this
    point. `user_data` was written by the member's assignor.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None

    def order(self, member_id: str) -> tuple[bool, bytes]:
        """Return the sort key of members, as in Java: static ones first, by instance id; then by id."""
        name = member_id if self.instance_id is None else self.instance_id
        return self.instance_id is None, name.encode("utf-16-be", "surrogatepass")


class Assignor(Protocol):
    """Assigns partitions to the members of a group. A custom assignor has these members and no state.

    All members must have an assignor of the same name; the one that most members prefer is used.
    """

    @property
    def name(self) -> str:
        """The name that members agree on."""

    @property
    def protocols(self) -> Sequence[RebalanceProtocol]:
        """The rebalance protocols that the assignor supports."""

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return the data that this member sends to the leader's assignor, given its last assignment."""

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Return the partitions of each member, by member id.

        Every partition of a subscribed topic is assigned to one of its subscribers. A cooperative assignor
        assigns no partition that another member still owns: it is free in the rebalance that follows.
        """


def shared_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Return the best protocol that all assignors support. Raises ValueError if there is none."""
    listed = list(assignors)
    for protocol in sorted(RebalanceProtocol, reverse=True):
        if all(protocol in assignor.protocols for assignor in listed):
            return protocol
    names = ", ".join(assignor.name for assignor in listed)
    raise ValueError(f"the assignors {names} have no rebalance protocol in common; leave some of them out")


def uses_racks(consumer_racks: Iterable[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Return whether racks affect the assignment (KIP-881).

    They do if members share a rack with replicas, and not every partition has replicas in all racks.
    """
    there = frozenset().union(*partition_racks) if partition_racks else frozenset()
    if there.isdisjoint(consumer_racks):
        return False
    return any(racks != there for racks in partition_racks)


class Racks:
    """Which members are in a rack of which partition; if racks have no effect, none is."""

    def __init__(self, topics: TopicRacks, members: Mapping[str, MemberSubscription]) -> None:
        of_members = {member_id: member.rack for member_id, member in members.items() if member.rack}
        of_partitions = {
            TopicPartition(topic, index): racks
            for topic, listed in topics.items()
            for index, racks in enumerate(listed)
        }
        self.matter = uses_racks(of_members.values(), list(of_partitions.values()))
        self._members = of_members if self.matter else {}
        self._partitions = of_partitions if self.matter else {}
        # Java counts the members near a partition even if racks have no effect, and orders by that count.
        self._near = {
            partition: sum(rack in racks for rack in of_members.values())
            for partition, racks in (of_partitions.items() if of_members else ())
        }

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        """Return whether a member has a rack without a replica."""
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._partitions.get(partition, ())

    def rarest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by the number of members in their racks."""
        if not self._near:
            return partitions
        return sorted(partitions, key=lambda partition: self._near.get(partition, 0))

    def next_near(self, partition: TopicPartition, member_ids: Sequence[str], first: int) -> int | None:
        """Return the index of the next member in a rack of the partition, from `first` on, circularly."""
        racks = self._partitions.get(partition, frozenset())
        for step in range(len(member_ids) if racks else 0):
            index = (first + step) % len(member_ids)
            if self._members.get(member_ids[index]) in racks:
                return index
        return None
