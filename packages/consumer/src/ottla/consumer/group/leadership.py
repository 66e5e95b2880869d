"""What the leader of a group's generation does: it divides the partitions, and watches for new ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from ottla.consumer.assignors import Assignor, MemberSubscription, TopicRacks
from ottla.consumer.errors import GroupFailed
from ottla.consumer.group.payloads import decode_subscription, encode_assignment
from ottla.consumer.group.rebalance_events import Joined
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.topics import TopicPartition

Given = Mapping[str, Sequence[TopicPartition]]


class Leadership:
    """One generation, as its leader sees it.

    With `assigns` false the group goes on with the assignment it has (KIP-814), and is only watched.
    """

    def __init__(self, members: Mapping[str, MemberSubscription], *, assigns: bool) -> None:
        self.members = members
        self.assigns = assigns
        self.watched: TopicRacks = {}
        """The topics of all members as they were when they were divided; without partitions where missing."""

    @classmethod
    def of(cls, answer: Joined, group_id: str) -> Self:
        """Read what the coordinator tells the leader. Raises GroupFailed for members that do not consume."""
        try:
            members = {
                each.member_id: decode_subscription(each.metadata, each.instance_id)
                for each in answer.members
            }
        except MalformedMessage as error:
            raise GroupFailed(f"a member of group {group_id!r} is no consumer: {error}") from error
        return cls(members, assigns=not answer.skip_assignment)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that somebody reads."""
        return frozenset(topic for member in self.members.values() for topic in member.topics)

    def assign(self, assignor: Assignor) -> dict[str, bytes]:
        """Divide what is watched; return each member's assignment, as it is sent.

        Raises GroupFailed where an assignor gives one partition to two, and what an assignor raises.
        """
        there = {topic: racks for topic, racks in self.watched.items() if racks}
        given = assignor.assign(there, self.members)
        _check(assignor.name, given)
        return {member_id: encode_assignment(given.get(member_id, ())) for member_id in self.members}

    def differs(self, seen: TopicRacks) -> bool:
        """Say whether there are other partitions, or in other racks, than when they were divided.

        Racks seem to change as brokers restart: they do not matter where no member has one.
        """
        shown = _racks if any(member.rack for member in self.members.values()) else _counts
        return shown(seen) != shown(self.watched)


def _racks(topics: TopicRacks) -> object:
    return {topic: tuple(racks) for topic, racks in topics.items() if racks}


def _counts(topics: TopicRacks) -> object:
    return {topic: len(racks) for topic, racks in topics.items() if racks}


def _check(name: str, given: Given) -> None:
    owner: dict[TopicPartition, str] = {}
    for member_id, partitions in given.items():
        for partition in partitions:
            if owner.setdefault(partition, member_id) != member_id:
                raise GroupFailed(
                    f"the assignor {name!r} gave {partition} to {owner[partition]} and to {member_id}"
                )
