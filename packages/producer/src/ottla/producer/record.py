"""A record to send, its metadata once it is written, and the interceptors that see both."""

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


class ProducerInterceptor:
    """Sees records on their way: a base class, or any object with some of its methods.

    Methods run on the event loop and must not block. Their exceptions are logged. Two more are not in this
    class, for each costs something per record: `on_begin` and `on_create`, which docs/howto/intercept.md has.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """See a record before it is serialized; return another in its place, or None to leave it."""
        return None

    def on_enqueue(self, partition: TopicPartition, record: ProducerRecord) -> None:
        """See a record that was appended to a batch; its key and value are bytes."""

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        """See a batch as it is sent to a broker."""

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        """See the metadata of a record that was written, or the error of one that was not."""
