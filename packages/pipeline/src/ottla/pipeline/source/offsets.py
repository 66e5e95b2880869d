"""Offsets by partition as JSON, the positions of a query, and the ranges that tasks share. Pure.

The JSON is Spark's: `{"orders": {"0": 23, "1": -2}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ottla.pipeline.errors import OptionError
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

EARLIEST = -2
"""In JSON: the first record."""

LATEST = -1
"""In JSON: the end of the partition."""

Offsets = dict[TopicPartition, int]
TopicIds = Mapping[str, str]
Nested = dict[str, dict[str, Any]]

FROM = "/from"
"""A suffix of a topic's name, for the starting offsets of its partitions. Topic names have no slash."""

IDS = "/ids"
"""The key of the ids of topics, where brokers have ids."""

INITIAL: Nested = {"/initial": {}}
"""The start of a query whose offsets are not resolved yet."""


class Position(NamedTuple):
    """Offsets of partitions, and the ids of their topics as far as they are known.

    A topic that was deleted and created again has another id: an offset of the old one means nothing in it.
    """

    offsets: Offsets
    ids: TopicIds

    def kept(self, ids: TopicIds) -> Offsets:
        """Return the offsets of the topics that were not created again, by their ids now."""
        return {
            partition: offset
            for partition, offset in self.offsets.items()
            if not self.is_recreated(partition, ids)
        }

    def is_recreated(self, partition: TopicPartition, ids: TopicIds) -> bool:
        """Whether the topic of a partition has another id now."""
        before, now = self.ids.get(partition.topic), ids.get(partition.topic)
        return before is not None and now is not None and before != now

    def nested(self) -> Nested:
        """Return the form of a checkpoint."""
        topics = {partition.topic for partition in self.offsets}
        ids = {topic: self.ids[topic] for topic in sorted(self.ids) if topic in topics}
        return nested(self.offsets) | ({IDS: ids} if ids else {})


def position_in(end: Nested) -> Position:
    """Return the position that a checkpoint holds; an old release wrote none of the ids."""
    return Position(flat(end), dict(end.get(IDS, {})))


def nested(offsets: Mapping[TopicPartition, int]) -> Nested:
    """Return offsets in the form of a checkpoint: by topic, then by partition, both sorted."""
    found: Nested = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Undo `nested`; drop starting offsets and ids."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in of_topics(offsets).items()
        for partition, offset in partitions.items()
    }


def of_topics(offsets: Mapping[str, T]) -> dict[str, T]:
    """Return the entries of topics, without the starting offsets and ids beside them."""
    return {topic: found for topic, found in offsets.items() if "/" not in topic}


def end_with_starts(starts: Mapping[TopicPartition, int], end: Position) -> Nested:
    """Return the end of a query's first batch in the form of a checkpoint, its starting offsets included.

    Spark stores only the ends of batches. After a restart, options such as `latest` could resolve to another
    start, and the same batch would contain other records.
    """
    return end.nested() | {f"{topic}{FROM}": found for topic, found in nested(starts).items()}


def starts_in(end: Nested) -> Offsets:
    """Return the starting offsets of the batch with this end if it is the first one; otherwise nothing."""
    return flat({topic.removesuffix(FROM): found for topic, found in end.items() if topic.endswith(FROM)})


def parse_offsets(option: str, text: str) -> Offsets:
    """Parse offsets or timestamps of an option. Raises OptionError.

    Starting offsets and ids may be present, as in a checkpoint, so that its offsets can be copied.
    """
    example = '{"orders": {"0": 23, "1": -2}}'
    parsed = _parse(option, text, example)
    for topic in parsed:
        if "/" in topic.removesuffix(FROM) and topic != IDS:
            raise OptionError(f"option {option!r} names {topic!r}: no topic has a slash in its name")
    try:
        return {
            TopicPartition(topic, int(partition)): _whole(number)
            for topic, partitions in of_topics(parsed).items()
            for partition, number in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f"option {option!r} must look like {example}, not {text!r}") from None


def parse_partitions(option: str, text: str) -> frozenset[TopicPartition]:
    """Parse the partitions of an option. Raises OptionError."""
    example = '{"orders": [0, 1]}'
    parsed = _parse(option, text, example)
    try:
        found = frozenset(
            TopicPartition(topic, _whole(number)) for topic, numbers in parsed.items() for number in numbers
        )
    except (TypeError, ValueError):
        raise OptionError(f"option {option!r} must look like {example}, not {text!r}") from None
    if not found or any(partition < 0 for _, partition in found):
        raise OptionError(f"option {option!r} must name partitions, as in {example}, not {text!r}")
    return found


def partition_names(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Return the names of the first few partitions, for a message."""
    listed = sorted(partitions)
    names = ", ".join(f"{topic}-{partition}" for topic, partition in listed[:most])
    return names if len(listed) <= most else f"{names} and {len(listed) - most} more"


def _whole(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError
    return number


def _parse(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"option {option!r} must be JSON such as {example}: {error}") from None
    if not isinstance(parsed, dict):
        raise OptionError(f"option {option!r} must look like {example}, not {text!r}")
    return parsed


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets of one partition from `start` up to but excluding `end`."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the non-empty ranges between two sets of offsets, in order."""
    found = (OffsetRange(partition, start[partition], end[partition]) for partition in sorted(end))
    return [offset_range for offset_range in found if len(offset_range)]


def split(
    ranges: Iterable[OffsetRange], least: int | None = None, longest: int | None = None
) -> list[OffsetRange]:
    """Split ranges evenly into at least `least` pieces, none with more than `longest` offsets.

    There are fewer pieces if there are fewer offsets.
    """
    whole = [offset_range for offset_range in ranges if len(offset_range)]
    pieces = [
        piece for offset_range in whole for piece in _cut(offset_range, _count(len(offset_range), longest))
    ]
    if least is None or len(pieces) >= least:
        return pieces
    total = sum(len(offset_range) for offset_range in whole)
    counts = [
        max(_count(len(offset_range), longest), -(-least * len(offset_range) // total))
        for offset_range in whole
    ]  # rounded up, so that there are never fewer than requested
    return [
        piece
        for offset_range, count in zip(whole, counts, strict=True)
        for piece in _cut(offset_range, count)
    ]


def _count(size: int, longest: int | None) -> int:
    return 1 if longest is None else -(-size // longest)


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, len(whole))
    edges = [whole.start + len(whole) * index // count for index in range(count + 1)]
    return [OffsetRange(whole.partition, edges[index], edges[index + 1]) for index in range(count)]
