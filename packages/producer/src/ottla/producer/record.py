"""A record as it is given to the producer, and what is known of it once it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.protocol.topics import TopicPartition


class ProducerRecord(NamedTuple):
    """A record to send. `timestamp_ms` None stands for now, `partition` None for the partitioner's choice."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] = ()


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 with acks=0, when nobody tells.

    `timestamp_ms` is the broker's time where the topic says LogAppendTime, the record's own otherwise.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one."""
        return TopicPartition(self.topic, self.partition)

    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, under aiokafka's name."""
        return self.timestamp_ms
