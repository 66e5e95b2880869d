"""Offsets of many partitions, as JSON: {"orders": {"0": 23, "1": -2}}. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from ottla.pipeline.errors import OptionError
from ottla.protocol.topics import TopicPartition

T = TypeVar("T")

EARLIEST = -2
"""In JSON: from the first record there is."""

LATEST = -1
"""In JSON: behind the last record there is."""

Offsets = dict[TopicPartition, int]
Nested = dict[str, dict[str, int]]

FROM = "/from"
"""Behind the name of a topic: where its partitions started. No topic has a slash in its name."""

INITIAL: Nested = {"/initial": {}}
"""What stands for the beginning of a query while nobody has asked for its offsets."""


def nested(offsets: Mapping[TopicPartition, int]) -> Nested:
    """Return offsets as a checkpoint keeps them: by topic, then by partition, both in order."""
    found: Nested = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return found


def flat(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Undo `nested`; where partitions started is left out."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in of_topics(offsets).items()
        for partition, offset in partitions.items()
    }


def of_topics(offsets: Mapping[str, T]) -> dict[str, T]:
    """Return offsets without what is said besides of where partitions started."""
    return {topic: found for topic, found in offsets.items() if "/" not in topic}


def end_with_starts(starts: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Nested:
    """Return the end of a query's first batch, as a checkpoint keeps it: with where the batch started.

    Spark keeps the ends of batches only. Asked again after a restart, options such as `latest` could mean
    another start, and the same batch would be another one.
    """
    return nested(end) | {f"{topic}{FROM}": found for topic, found in nested(starts).items()}


def starts_in(end: Nested) -> Offsets:
    """Return where the batch with this end started, if it is a first one; otherwise nothing."""
    return flat({topic.removesuffix(FROM): found for topic, found in end.items() if topic.endswith(FROM)})


def parse_offsets(option: str, text: str) -> Offsets:
    """Read offsets, or timestamps, that an option gives as JSON. Raises OptionError.

    Where partitions started may be said besides, as in a checkpoint: so its offsets can be given as they are.
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
    """Read partitions that an option gives as JSON. Raises OptionError."""
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


def written(partitions: Iterable[TopicPartition], most: int = 5) -> str:
    """Name partitions in a message: the first few."""
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
