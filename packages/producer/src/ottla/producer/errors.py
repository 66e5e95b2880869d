"""The errors of the producer itself."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.errors import ClientError, NotRunning
from ottla.protocol.errors import InvalidRecord
from ottla.protocol.topics import TopicPartition


class ProducerClosed(NotRunning):
    """The producer is not open, or was closed before a record was acknowledged."""


class RecordTooLarge(ClientError):
    """A record is larger than `max_request_size`. It is in no batch."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a record of about {size_bytes} bytes; max_request_size allows {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class BufferFull(ClientError):
    """The buffer was full for `max_block_ms`. The record is in no batch."""

    retriable = True

    def __init__(
        self,
        waiting_bytes: int,
        limit_bytes: int,
        waited_ms: int = 0,
        *,
        waiting_records: int = 0,
        max_records: int = 0,
    ) -> None:
        after = f" after {waited_ms} ms" if waited_ms else ""
        limit = f"{waiting_bytes} bytes wait to be sent{after}; buffer_memory allows {limit_bytes}"
        if waiting_bytes < limit_bytes and 0 < max_records <= waiting_records:
            limit = (
                f"{waiting_records} records wait to be sent{after}; "
                f"queue_buffering_max_messages allows {max_records}"
            )
        super().__init__(limit)
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes
        self.waiting_records = waiting_records
        self.max_records = max_records


class NoSuchPartition(ClientError, ValueError):
    """A topic has no such partition, and did not get it within `max_block_ms`. The record is in no batch."""

    def __init__(self, topic: str, partition: int, count: int, waited_ms: float = 0) -> None:
        after = f", after {waited_ms:.0f} ms" if waited_ms else ""
        super().__init__(f"{topic!r} has the partitions 0 to {count - 1}, not {partition}{after}")
        self.topic = topic
        self.partition = partition
        self.count = count
        self.waited_ms = waited_ms


class TopicRecreated(ClientError):
    """A record has no place in its topic, which was deleted and created again with other partitions.

    Its partition is gone, or was chosen by the number of partitions: the same key belongs to another one now.
    Send it again. A batch whose response was lost may be written all the same.
    """

    retriable = True

    def __init__(self, topic: str, count_before: int, count: int) -> None:
        super().__init__(
            f"{topic!r} was deleted and created again with {count} partitions, and had {count_before}: "
            f"send the record again"
        )
        self.topic = topic
        self.count_before = count_before
        self.count = count


class DeliveryTimeout(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may be written all the same."""

    def __init__(self, partition: TopicPartition, timeout_ms: int, last: BaseException | None) -> None:
        because = f": {last}" if last is not None else ""
        super().__init__(f"{partition} did not acknowledge a batch within {timeout_ms} ms{because}")
        self.partition = partition
        self.timeout_ms = timeout_ms
        self.last = last


class RecordRefused(InvalidRecord):
    """The leader refused a batch because of some of its records; none of the batch is written (KIP-467).

    `record_errors` has the reasons by the index in the batch, ascending; brokers leave out some of many.
    `batch_index` is the index of the record whose error this is, None for the whole batch.
    """

    def __init__(self, record_errors: Mapping[int, str], batch_index: int | None = None) -> None:
        self.record_errors = record_errors
        self.batch_index = batch_index
        super().__init__(self._text())

    def of_record(self, batch_index: int) -> RecordRefused:
        """Return the error of one record of the batch."""
        return RecordRefused(self.record_errors, batch_index)

    def _text(self) -> str:
        if self.batch_index is not None and self.batch_index in self.record_errors:
            return f"record {self.batch_index} of its batch: {self.record_errors[self.batch_index]}"
        first = next(iter(self.record_errors))  # each record of a large batch comes here
        others = len(self.record_errors) - 1
        more = f" (and {others} more)" if others else ""
        refused = f"record {first} of its batch: {self.record_errors[first]}{more}"
        return refused if self.batch_index is None else f"refused with its batch, because of {refused}"
