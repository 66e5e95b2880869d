"""A record to send, and its metadata once it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.protocol.topics import TopicPartition

Headers = Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]
"""Names and values of a record's headers, in order; a mapping where names do not repeat."""

# The largest size of a record besides key, value and headers: varints, attributes, counts.
RECORD_OVERHEAD_BYTES = 40


class ProducerRecord(NamedTuple):
    """A record to send. `timestamp_ms` None stands for now, `partition` None for the partitioner's choice."""

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 with acks=0, for then no broker reports it.

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
