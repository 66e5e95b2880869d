"""What an assignor is given, and what it must do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from ottla.protocol.topics import TopicPartition

NO_GENERATION = -1

TopicRacks = Mapping[str, Sequence[frozenset[str]]]
"""The topics that somebody of the group reads: for each partition, in order, the racks of its replicas."""


class RebalanceProtocol(IntEnum):
    """Whether members give everything up before they join again, or only what goes to others (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


class Assigned(NamedTuple):
    """What a member was assigned last, and in which generation."""

    partitions: tuple[TopicPartition, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member said of itself as it joined.

    `owned` and `generation` are what it has from its last generation; members of an eager group own nothing
    by then. `user_data` is what its own assignor wrote.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None

    def order(self, member_id: str) -> tuple[bool, bytes]:
        """Return the key members are sorted by: static ones first, by name, then by id, as Java sorts."""
        name = member_id if self.instance_id is None else self.instance_id
        return self.instance_id is None, name.encode("utf-16-be", "surrogatepass")


class Assignor(Protocol):
    """Divides partitions among the members of a group. Write one by having these; it keeps no state.

    All members must have an assignor of the same name; the one that is first by the members' votes is used.
    """

    @property
    def name(self) -> str:
        """Its name, on which members agree."""

    @property
    def protocols(self) -> Sequence[RebalanceProtocol]:
        """The ways of rebalancing that it can work with."""

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return what the leader's assignor shall know of this member, which was assigned `last`."""

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> Mapping[str, Sequence[TopicPartition]]:
        """Return what each member shall read, by member id.

        Every partition of a topic that somebody reads goes to one member that reads it. A cooperative one
        gives to nobody what another member still owns: it is free in the next rebalance, which follows.
        """


def shared_protocol(assignors: Iterable[Assignor]) -> RebalanceProtocol:
    """Return the best protocol that all of some assignors work with. Raises ValueError if there is none."""
    listed = list(assignors)
    for protocol in sorted(RebalanceProtocol, reverse=True):
        if all(protocol in each.protocols for each in listed):
            return protocol
    names = ", ".join(each.name for each in listed)
    raise ValueError(f"the assignors {names} have no way of rebalancing in common; leave some of them out")


def uses_racks(consumer_racks: Iterable[str], partition_racks: Sequence[frozenset[str]]) -> bool:
    """Say whether it matters which member gets which partition (KIP-881).

    It does when some members share a rack with replicas, and not every partition is in all of the racks.
    """
    there = frozenset().union(*partition_racks) if partition_racks else frozenset()
    if there.isdisjoint(consumer_racks):
        return False
    return any(racks != there for racks in partition_racks)
