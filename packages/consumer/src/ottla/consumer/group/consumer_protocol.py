"""Encode and decode the consumer protocol: subscriptions and assignments, opaque bytes to the coordinator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ottla.consumer.assignors import MemberSubscription
from ottla.protocol.group_payloads import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.topics import TopicPartition

SUBSCRIPTION_VERSION = 3
# Later versions of the assignment have no further fields, and every client reads version 0.
ASSIGNMENT_VERSION = 0


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
