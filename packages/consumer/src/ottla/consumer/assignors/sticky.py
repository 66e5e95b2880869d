"""The sticky assignor: as balanced as possible, and then with as few moves as possible (KIP-54)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.consumer.assignors.assignor import Assigned, MemberSubscription, RebalanceProtocol, TopicRacks
from ottla.consumer.assignors.java_hash_map_order import hash_order, string_hash
from ottla.consumer.assignors.racks import Racks
from ottla.consumer.assignors.sticky_constrained import ConstrainedStickyAssignment
from ottla.consumer.assignors.sticky_general import GeneralStickyAssignment, previous_owners
from ottla.consumer.assignors.user_data import decode_sticky, encode_sticky
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
