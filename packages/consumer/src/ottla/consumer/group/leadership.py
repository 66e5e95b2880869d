"""The work of a group's leader: read subscriptions, assign the partitions, detect that they changed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from ottla.consumer.assignors import Assignor, MemberSubscription, TopicRacks
from ottla.consumer.errors import GroupFailed
from ottla.consumer.group.rebalance_events import Joined, MemberSettings
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.topics import TopicPartition

Given = Mapping[str, Sequence[TopicPartition]]

SUBSCRIPTION_VERSION = 3
# Later versions of the assignment have no further fields, and every client reads version 0.
ASSIGNMENT_VERSION = 0


class Leadership:
    """One generation, as its leader sees it.

    With `assigns` false the group keeps its assignment (KIP-814), and its topics are only watched.
    """

    def __init__(self, members: Mapping[str, MemberSubscription], *, assigns: bool) -> None:
        self.members = members
        self.assigns = assigns
        self.watched: TopicRacks = {}
        """The topics of all members at the time of the assignment; missing topics have no partitions."""

    @classmethod
    def of(cls, answer: Joined, group_id: str) -> Self:
        """Return the generation of a JoinGroup response. Raises GroupFailed for other protocols."""
        try:
            members = {
                member.member_id: decode_subscription(member.metadata, member.instance_id)
                for member in answer.members
            }
        except MalformedMessage as error:
            raise GroupFailed(f"a member of group {group_id!r} is no consumer: {error}") from error
        return cls(members, assigns=not answer.skip_assignment)

    @property
    def topics(self) -> frozenset[str]:
        """The topics of all subscriptions."""
        return frozenset(topic for member in self.members.values() for topic in member.topics)

    def assign(self, assignor: Assignor) -> dict[str, bytes]:
        """Assign the watched partitions; return the encoded assignment of each member.

        Raises GroupFailed if an assignor assigns a partition twice, and what the assignor raises.
        """
        there = {topic: racks for topic, racks in self.watched.items() if racks}
        given = assignor.assign(there, self.members)
        _check(assignor.name, given)
        return {member_id: encode_assignment(given.get(member_id, ())) for member_id in self.members}

    def differs(self, seen: TopicRacks) -> bool:
        """Return whether partitions, or their racks, differ from those at the time of the assignment.

        Racks change as brokers restart; they are ignored if no member has one.
        """
        shown = _racks if any(member.rack for member in self.members.values()) else _counts
        return shown(seen) != shown(self.watched)


def leadership_in(answer: Joined, settings: MemberSettings, topics: frozenset[str]) -> Leadership | None:
    """Return what the member that got this JoinGroup response leads; None if another member leads.

    `topics` is its subscription. Raises GroupFailed when a member is no consumer.
    """
    if answer.leader_id == answer.member_id:
        return Leadership.of(answer, settings.group_id)
    if _is_former_self(answer, settings.instance_id):
        return Leadership({answer.member_id: MemberSubscription(tuple(topics))}, assigns=False)
    return None


def _is_former_self(answer: Joined, instance_id: str | None) -> bool:
    """Return whether the leader is this static member before its restart, by the ids that brokers make.

    Before JoinGroup version 9 (KIP-814) a leader that restarts is not told that it leads. The group keeps
    its assignment, but no other member would notice new partitions.
    """
    return instance_id is not None and answer.leader_id[:-36] == f"{instance_id}-"


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


def encode_subscription(member: MemberSubscription) -> bytes:
    """Encode a member's subscription for its leader; equal subscriptions give equal bytes."""
    return ConsumerProtocolSubscription(
        topics=sorted(member.topics),
        user_data=member.user_data,
        owned_partitions=_by_topic(member.owned),
        generation_id=member.generation,
        rack_id=member.rack,
    ).to_bytes(SUBSCRIPTION_VERSION)


def decode_subscription(data: bytes, instance_id: str | None) -> MemberSubscription:
    """Decode a member's subscription. Raises MalformedMessage."""
    read = ConsumerProtocolSubscription.from_bytes(data)
    return MemberSubscription(
        topics=tuple(dict.fromkeys(read.topics)),
        user_data=read.user_data,
        owned=_partitions(read.owned_partitions),
        generation=read.generation_id,
        rack=read.rack_id,
        instance_id=instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of a member."""
    return ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)).to_bytes(ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the assignment of a member; no bytes mean no partitions. Raises MalformedMessage."""
    if not data:
        return ()
    return _partitions(ConsumerProtocolAssignment.from_bytes(data).assigned_partitions)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return [TopicPartitions(topic=topic, partitions=indexes) for topic, indexes in topics.items()]


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(topic.topic, index) for topic in topics for index in topic.partitions)
