"""Offsets by partition as JSON: {"orders": {"0": 23, "1": -2}}. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ottla.pipeline.errors import OptionError
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

EARLIEST = -2
"""In JSON: the first record."""

LATEST = -1
"""In JSON: the end of the partition."""

Offsets = dict[TopicPartition, int]
Nested = dict[str, dict[str, int]]

FROM = "/from"
"""A suffix of a topic's name, for the starting offsets of its partitions. Topic names have no slash."""

INITIAL: Nested = {"/initial": {}}
"""The start of a query whose offsets are not resolved yet."""


def nested(offsets: Mapping[TopicPartition, int]) -> Nested:
    """Return offsets in the form of a checkpoint: by topic, then by partition, both sorted."""
    found: Nested = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Undo `nested`; drop starting offsets."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in of_topics(offsets).items()
        for partition, offset in partitions.items()
    }


def of_topics(offsets: Mapping[str, T]) -> dict[str, T]:
    """Return the entries of topics, without the starting offsets beside them."""
    return {topic: found for topic, found in offsets.items() if "/" not in topic}


def end_with_starts(starts: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Nested:
    """Return the end of a query's first batch in the form of a checkpoint, its starting offsets included.

    Spark stores only the ends of batches. After a restart, options such as `latest` could resolve to another
    start, and the same batch would contain other records.
    """
    return nested(end) | {f"{topic}{FROM}": found for topic, found in nested(starts).items()}


def starts_in(end: Nested) -> Offsets:
    """Return the starting offsets of the batch with this end if it is the first one; otherwise nothing."""
    return flat({topic.removesuffix(FROM): found for topic, found in end.items() if topic.endswith(FROM)})


def parse_offsets(option: str, text: str) -> Offsets:
    """Parse offsets or timestamps of an option. Raises OptionError.

    Starting offsets may be present, as in a checkpoint, so that the offsets of a checkpoint can be copied.
    """
    example = '{"orders": {"0": 23, "1": -2}}'
    parsed = _parse(option, text, example)
    for topic in parsed:
        if "/" in topic.removesuffix(FROM):
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
