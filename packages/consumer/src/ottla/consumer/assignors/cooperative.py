"""The cooperative sticky assignor: members keep reading what stays theirs through a rebalance (KIP-429)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.consumer.assignors.assignor import (
    NO_GENERATION,
    Assigned,
    MemberSubscription,
    RebalanceProtocol,
    TopicRacks,
)
from ottla.consumer.assignors.sticky import Given, assign_sticky
from ottla.consumer.assignors.user_data import decode_generation, encode_generation
from ottla.protocol.topics import TopicPartition


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
