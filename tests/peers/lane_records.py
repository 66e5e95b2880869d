"""Records for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def record(
    offset: int, key: str | None = None, partition: TopicPartition = P0, value: bytes = b""
) -> ConsumerRecord:
    """Return a record with a key of text."""
    return ConsumerRecord(
        partition.topic, partition.partition, offset, key=None if key is None else key.encode(), value=value
    )


def records(
    keys: Iterable[str | None], first: int = 0, partition: TopicPartition = P0
) -> list[ConsumerRecord]:
    """Records with these keys, at consecutive offsets."""
    return [record(first + index, key, partition) for index, key in enumerate(keys)]
