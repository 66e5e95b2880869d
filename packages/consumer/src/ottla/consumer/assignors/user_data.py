"""User data that the sticky assignors write into a subscription, in the Java client's layouts.

Sticky: version 0 is an array of topics with their partitions, version 1 appends the generation they are from;
nothing says which it is (KIP-54, KIP-341). Cooperative sticky: the generation alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ottla.consumer.assignors.assignor import NO_GENERATION, Assigned
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.schema import Message, Struct, array, int32, message, string
from ottla.protocol.topics import TopicPartition


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
