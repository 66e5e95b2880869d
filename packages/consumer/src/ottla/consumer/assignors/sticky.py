"""The sticky assignors: as balanced as possible, then with as few moves as possible (KIP-54, KIP-429).

Members of the cooperative one keep reading what stays theirs through a rebalance. Both write into their
subscriptions what they had, in the Java client's layouts. Sticky: version 0 is an array of topics with their
partitions, version 1 appends the generation they are from; nothing says which it is (KIP-341). Cooperative
sticky: the generation alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ottla.consumer.assignors.assignor import (
    NO_GENERATION,
    Assigned,
    MemberSubscription,
    Racks,
    RebalanceProtocol,
    TopicRacks,
)
from ottla.consumer.assignors.sticky_constrained import ConstrainedStickyAssignment
from ottla.consumer.assignors.sticky_general import (
    GeneralStickyAssignment,
    hash_order,
    previous_owners,
    string_hash,
)
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.schema import Message, Struct, array, int32, message, string
from ottla.protocol.topics import TopicPartition

Given = dict[str, list[TopicPartition]]


class StickyAssignor:
    """Sticky, with the eager protocol: members revoke all partitions, and get most of them back.

    Each member sends its last assignment to the leader in its user data.
    """

    name = "sticky"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return the last assignment of the member and its generation."""
        return None if last is None else encode_sticky(last)

    def assign(self, topics: TopicRacks, members: Mapping[str, MemberSubscription]) -> Given:
        """Return each member's partitions."""
        claims = {member_id: decode_sticky(member.user_data) for member_id, member in members.items()}
        given, _ = assign_sticky(topics, members, claims)
        return given


def assign_sticky(
    topics: TopicRacks,
    members: Mapping[str, MemberSubscription],
    claims: Mapping[str, Assigned],
) -> tuple[Given, dict[TopicPartition, str] | None]:
    """Return each member's partitions, given the last assignments that members claim.

    With equal subscriptions, also returns the new owners of partitions that others must revoke first; None
    if they are not computed.
    """
    ordered = {member_id: members[member_id] for member_id in hash_order(members, string_hash)}
    owned, disputed = _settle(topics, ordered, claims)
    racks = Racks(topics, ordered)
    if len({frozenset(member.topics) for member in ordered.values()}) <= 1:
        constrained = ConstrainedStickyAssignment(topics, racks, owned, disputed)
        return constrained.build(), constrained.transferred
    previous = previous_owners({member_id: claims[member_id] for member_id in ordered})
    return GeneralStickyAssignment(topics, racks, owned, ordered, previous).build(), None


def _settle(
    topics: TopicRacks, members: Mapping[str, MemberSubscription], claims: Mapping[str, Assigned]
) -> tuple[Given, set[TopicPartition]]:
    """Return previous owners: the newer generation wins; claims of one generation dispute each other."""
    owner: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    owned: Given = {}
    for member_id in members:
        owned[member_id] = []
        for partition in claims[member_id].partitions:
            if partition.partition >= len(topics.get(partition.topic, ())):
                continue
            other = owner.get(partition)
            # Java compares with the generation in the other's subscription, not with that of its claim.
            theirs = members[other].generation if other is not None else -2
            if other is not None and theirs > claims[member_id].generation:
                continue
            if other is not None:
                if partition in owned[other]:
                    owned[other].remove(partition)
                if theirs == claims[member_id].generation:
                    disputed.add(partition)
            if other is None or theirs < claims[member_id].generation:
                owned[member_id].append(partition)
            owner[partition] = member_id
    return owned, disputed


class CooperativeStickyAssignor:
    """Sticky, with the cooperative protocol: what changes hands is given up first, and given a round later.

    Members say in their subscriptions what they own.
    """

    name = "cooperative-sticky"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return the generation of owned partitions, for leaders that do not find it in the subscription."""
        return encode_generation(NO_GENERATION if last is None else last.generation)

    def assign(self, topics: TopicRacks, members: Mapping[str, MemberSubscription]) -> Given:
        """Return each member's partitions, without those that another one has to give up first."""
        claims = {member_id: _claim(member) for member_id, member in members.items()}
        given, transferred = assign_sticky(topics, members, claims)
        if transferred is None:
            transferred = _changing_hands(given, members)
        for partition, member_id in transferred.items():
            given[member_id].remove(partition)
        return given


def _claim(member: MemberSubscription) -> Assigned:
    known = member.generation != NO_GENERATION
    return Assigned(member.owned, member.generation if known else decode_generation(member.user_data))


def _changing_hands(given: Given, members: Mapping[str, MemberSubscription]) -> dict[TopicPartition, str]:
    """Return the partitions that one member gets and another still owns."""
    owned = {member_id: set(member.owned) for member_id, member in members.items()}
    given_up = {
        partition for member_id, had in owned.items() for partition in had.difference(given[member_id])
    }
    return {
        partition: member_id
        for member_id, partitions in given.items()
        for partition in partitions
        if partition in given_up and partition not in owned[member_id]
    }


class _TopicAssignment(Struct):
    topic: str = string()
    partitions: list[int] = array(int32)


@message(versions=(0, 1))
class _StickyUserData(Message):
    """The assignment a member had."""

    previous_assignment: list[_TopicAssignment] = array(_TopicAssignment)
    generation: int = int32(NO_GENERATION, since=1)


def encode_sticky(last: Assigned) -> bytes:
    """Write what a member was assigned last."""
    topics = [
        _TopicAssignment(topic=name, partitions=indexes) for name, indexes in _by_topic(last.partitions)
    ]
    return _StickyUserData(previous_assignment=topics, generation=last.generation).encode(1)


def decode_sticky(data: bytes | None) -> Assigned:
    """Read what a member was assigned last; nothing where that cannot be read."""
    for version in (1, 0) if data else ():
        try:
            read = _StickyUserData.decode(data or b"", version, exact=False)
        except MalformedMessage:
            continue
        partitions = [
            TopicPartition(topic.topic, index)
            for topic in read.previous_assignment
            for index in topic.partitions
        ]
        return Assigned(tuple(partitions), read.generation)
    return Assigned((), NO_GENERATION)


def encode_generation(generation: int) -> bytes:
    """Write a generation."""
    return generation.to_bytes(4, "big", signed=True)


def decode_generation(data: bytes | None) -> int:
    """Read a generation; -1 where there is none."""
    if data is None or len(data) < 4:
        return NO_GENERATION
    return int.from_bytes(data[:4], "big", signed=True)


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic].append(partition.partition)
    return topics.items()
