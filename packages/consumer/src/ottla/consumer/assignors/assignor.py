"""The interface of assignors: their input and their result."""

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
