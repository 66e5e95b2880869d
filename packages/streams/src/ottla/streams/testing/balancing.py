"""Shares partitions among the members of a group: evenly, and each stays where it is if it can. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeVar

from ottla.protocol.topics import TopicPartition

M = TypeVar("M")

Assignment = dict[M, set[TopicPartition]]


def balanced(
    partitions: Iterable[TopicPartition],
    members: Sequence[tuple[M, Set[str]]],
    owned: Mapping[M, Set[TopicPartition]],
) -> Assignment[M]:
    """Return the partitions of each member, given with the topics that it subscribes to."""
    target: Assignment[M] = {member: set() for member, _ in members}
    readers = {
        partition: [m for m, topics in members if partition.topic in topics]
        for partition in sorted(partitions)
    }
    for partition, able in readers.items():
        if able:
            owner = next((m for m in able if partition in owned.get(m, ())), None)
            target[owner if owner is not None else _least(able, target)].add(partition)
    while (move := _next_move(readers, target)) is not None:
        partition, giver, taker = move
        target[giver].discard(partition)
        target[taker].add(partition)
    return target


def rotated(members: Sequence[M], assignment: Assignment[M]) -> Assignment[M]:
    """Return an assignment in which each member has what the next one had."""
    following = [*members[1:], *members[:1]]
    return {member: assignment[other] for member, other in zip(members, following, strict=True)}


def _least(able: Sequence[M], target: Assignment[M]) -> M:
    return min(able, key=lambda member: len(target[member]))


def _next_move(
    readers: Mapping[TopicPartition, Sequence[M]], target: Assignment[M]
) -> tuple[TopicPartition, M, M] | None:
    """Return a partition whose owner has two more than another reader of its topic."""
    for partition, able in reversed(list(readers.items())):
        for giver in able:
            taker = _least(able, target)
            if partition in target[giver] and len(target[giver]) > len(target[taker]) + 1:
                return partition, giver, taker
    return None
