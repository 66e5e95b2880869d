"""Assign partitions to threads, by topic filters: every member computes the same from the znodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import ClassVar, NamedTuple

from ottla.protocol.topics import INTERNAL_TOPICS, TopicPartition
from ottla.zookeeper.znodes import ConsumerRegistration

Ownership = dict[TopicPartition, "ThreadId"]


class ThreadId(NamedTuple):
    """One stream of one member; its text is the content of an owner's znode."""

    consumer_id: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer_id}-{self.number}"


@dataclass(frozen=True, slots=True)
class GroupView:
    """The input of a rebalance: the members, and the partitions of all topics they subscribe to.

    `topics` are the names of all topics, which only wildcard subscriptions need.
    """

    members: Sequence[ConsumerRegistration]
    partitions: Mapping[str, Sequence[int]]
    topics: Sequence[str] = ()
    exclude_internal_topics: bool = True

    def threads(self) -> dict[str, list[ThreadId]]:
        """Return the threads of each topic, sorted by their text."""
        found: dict[str, list[ThreadId]] = {}
        for member in self.members:
            for topic, threads in streams_of(member, self.topics, self.exclude_internal_topics).items():
                found.setdefault(topic, []).extend(threads)
        return {topic: sorted(threads, key=str) for topic, threads in found.items()}


def streams_of(
    member: ConsumerRegistration, topics: Iterable[str], exclude_internal: bool = True
) -> dict[str, list[ThreadId]]:
    """Return a member's threads for each topic; a wildcard is matched against `topics`."""
    kind = FILTERS.get(member.pattern)
    counts: Mapping[str, int] = member.subscription
    if kind is not None and counts:
        expression, count = next(iter(counts.items()))
        chosen = kind(expression)
        counts = {topic: count for topic in topics if chosen.allows(topic, exclude_internal=exclude_internal)}
    return {
        topic: [ThreadId(member.consumer_id, number) for number in range(count)]
        for topic, count in counts.items()
    }


def range_assignment(view: GroupView) -> Ownership:
    """Assign each thread a range of every topic's partitions; the first threads get one more if uneven.

    Five partitions over two members with two threads each are 2, 1, 1, 1.
    """
    owners: Ownership = {}
    for topic, threads in view.threads().items():
        partitions = sorted(view.partitions.get(topic, ()))
        each, longer = divmod(len(partitions), len(threads))
        for position, thread in enumerate(threads):
            start = each * position + min(position, longer)
            count = each + (position < longer)
            for partition in partitions[start : start + count]:
                owners[TopicPartition(topic, partition)] = thread
    return owners


def round_robin_assignment(view: GroupView) -> Ownership:
    """Assign all partitions of all topics to all threads in turn, in the order of Java's hash codes."""
    threads = view.threads()
    partitions = [
        TopicPartition(topic, partition)
        for topic in sorted(threads)
        for partition in sorted(view.partitions.get(topic, ()))
    ]
    turn = cycle(sorted({thread for of_topic in threads.values() for thread in of_topic}, key=str))
    owners: Ownership = {}
    for partition in sorted(partitions, key=lambda each: java_hash(str(each))):
        owners[partition] = next(thread for thread in turn if thread in threads[partition.topic])
    return owners


ASSIGNMENTS = {"range": range_assignment, "roundrobin": round_robin_assignment}


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, on which all members must agree."""
    value = 0
    for character in text.encode():  # topic names are ASCII
        value = (31 * value + character) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@dataclass(frozen=True)
class TopicFilter:
    """A regular expression over whole topic names; `,` means `|` in it, spaces and quotes are dropped."""

    expression: str
    regex: str = field(init=False)
    pattern: ClassVar[str]
    """The word for this kind of filter in the group's znodes."""

    def __post_init__(self) -> None:
        regex = self.expression.strip().replace(",", "|").replace(" ", "").strip("\"'")
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"{regex!r} is not a regular expression: {error}") from error
        object.__setattr__(self, "regex", regex)

    def allows(self, topic: str, *, exclude_internal: bool = True) -> bool:
        """Return whether a topic matches; Kafka's internal topics do not, unless included."""
        if exclude_internal and topic in INTERNAL_TOPICS:
            return False
        return self._accepts(re.fullmatch(self.regex, topic) is not None)

    def _accepts(self, matches: bool) -> bool:
        raise NotImplementedError


class Whitelist(TopicFilter):
    """Matches the topics whose names match the expression."""

    pattern = "white_list"

    def _accepts(self, matches: bool) -> bool:
        return matches


class Blacklist(TopicFilter):
    """Matches the topics whose names do not match the expression."""

    pattern = "black_list"

    def _accepts(self, matches: bool) -> bool:
        return not matches


FILTERS: dict[str, type[TopicFilter]] = {kind.pattern: kind for kind in (Whitelist, Blacklist)}
