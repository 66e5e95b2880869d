"""Validate the arguments of a consumer's methods, and its names; errors say the form or name to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.settings import SettingError
from ottla.protocol.topics import TopicPartition, why_illegal_topic_name

Partition = TopicPartition | tuple[str, int]
Offset = int | OffsetAndMetadata | tuple[int, str]

_HIGHEST_OFFSET = 2**63 - 1

PRODUCER_SETTINGS = frozenset(
    {
        "acks",
        "batch_size",
        "buffer_memory",
        "compressed_topics",
        "compression_level",
        "compression_type",
        "delivery_timeout_ms",
        "enable_idempotence",
        "key_serializer",
        "linger_ms",
        "max_block_ms",
        "max_request_size",
        "metadata_max_idle_ms",
        "partitioner",
        "retries",
        "transaction_timeout_ms",
        "transactional_id",
        "value_serializer",
    }
)

_INSTEAD = {
    "last_poll_timestamp": "use the timestamp of records, and your own clock for their arrival",
    "poll": "use getmany(timeout_ms=..., max_records=...), or iterate",
    "consume": "use getmany(timeout_ms=..., max_records=...), or iterate",
    "commit_async": "use commit_nowait()",
    "close": "use stop(), or `async with`",
    "unassign": "use assign([])",
    "store_offsets": "a record is finished when the next one is asked for; or commit({partition: offset})",
    "get_watermark_offsets": "use beginning_offsets([partition]) and end_offsets([partition])",
    "incremental_assign": "use assign(partitions): those assigned before keep their positions",
    "incremental_unassign": "use assign(partitions) with the partitions to keep",
    "list_topics": "use topics(), or ottla.admin.Admin",
    "consumer_group_metadata": "use group_metadata()",
}


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


def check_settings(given: Mapping[str, Any]) -> None:
    """Raise SettingError for a setting of the producer."""
    for name in given:
        if name in PRODUCER_SETTINGS:
            raise SettingError(f"{name} is a setting of the producer, not of the consumer")


def no_such_name(owner: object, name: str) -> AttributeError:
    """Return the error for an unknown attribute, with what to use instead if it is another client's."""
    kind = type(owner).__name__
    instead = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
    return AttributeError(f"{kind!r} object has no attribute {name!r}{instead}", name=name, obj=owner)
