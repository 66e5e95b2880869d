"""Validate and convert the arguments of a consumer's methods; errors name the expected form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.protocol.topics import TopicPartition, why_illegal_topic_name

Partition = TopicPartition | tuple[str, int]
Offset = int | OffsetAndMetadata | tuple[int, str]

_HIGHEST_OFFSET = 2**63 - 1


def to_topics(given: Iterable[str]) -> list[str]:
    """Return names of topics. Raises TypeError for other types, ValueError for an illegal name."""
    if not isinstance(given, Iterable):
        raise TypeError(f"a topic is named by text, not {given!r}")
    names: list[Any] = [given] if isinstance(given, str) else list(given)
    for name in names:
        if not isinstance(name, str):
            apart = ", ".join(map(repr, name)) if isinstance(name, list | tuple | set) else "'orders'"
            raise TypeError(f"topics are named by text, each an argument of its own: {apart}; not {name!r}")
        if (reason := why_illegal_topic_name(name)) is not None:
            raise ValueError(f"this cannot be the name of a topic: {reason}")
    return names


def to_partition(given: Partition) -> TopicPartition:
    """Return a partition. Raises TypeError for anything else."""
    match given:
        case (str(), int(number)) if not isinstance(number, bool) and number >= 0:
            return given if isinstance(given, TopicPartition) else TopicPartition(*given)
    raise TypeError(f"a partition is TopicPartition(topic, number), not {given!r}")


def to_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """Return partitions. Raises TypeError also for a single partition that is not in a list."""
    given: Any = partitions
    if isinstance(given, str | TopicPartition) or not isinstance(given, Iterable):
        example = f"[{given!r}]" if isinstance(given, TopicPartition) else "[TopicPartition(topic, number)]"
        raise TypeError(f"give a list of partitions, {example}, not {given!r}")
    return [to_partition(partition) for partition in given]


def to_offset(partition: TopicPartition, given: Offset) -> OffsetAndMetadata:
    """Return an offset with its metadata. Raises TypeError for no offset, ValueError for one below zero."""
    offset: Any = (given,) if isinstance(given, int) else given
    match offset:
        case (int(number),) | (int(number), str()) | (int(number), str(), int()) if not isinstance(
            number, bool
        ):
            if 0 <= number <= _HIGHEST_OFFSET:
                return OffsetAndMetadata(*offset)
            raise ValueError(f"the offset of {partition} cannot be {number}: the first of all is 0")
    raise TypeError(
        f"the offset of {partition} is a whole number, (offset, note) or OffsetAndMetadata, not {given!r}"
    )


def to_record_limit(given: int | None) -> int | None:
    """Return the most records that a call may return, None for the default. Raises ValueError below 1."""
    if given is not None and given < 1:
        raise ValueError(f"max_records is at least 1, or None for the default, not {given}")
    return given


def to_commit(offsets: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit. Raises TypeError and ValueError for the first invalid one."""
    if not isinstance(offsets, Mapping):
        raise TypeError(f"commit takes {{TopicPartition(topic, number): offset}}, not {offsets!r}")
    checked = {to_partition(partition): offset for partition, offset in offsets.items()}
    return {partition: to_offset(partition, offset) for partition, offset in checked.items()}
