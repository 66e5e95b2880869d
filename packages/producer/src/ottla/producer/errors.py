"""The errors of the producer itself."""

from __future__ import annotations

from ottla.client.errors import ClientError
from ottla.protocol.topics import TopicPartition


class ProducerClosed(ClientError):
    """The producer is not open: nothing can be sent."""


class RecordTooLarge(ClientError):
    """A record is larger than `max_request_size`. It is in no batch."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"a record of about {size_bytes} bytes; max_request_size allows {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class BufferFull(ClientError):
    """The buffer was full for `max_block_ms`. The record is in no batch."""

    retriable = True

    def __init__(self, waiting_bytes: int, limit_bytes: int, waited_ms: int = 0) -> None:
        after = f" after {waited_ms} ms" if waited_ms else ""
        super().__init__(f"{waiting_bytes} bytes wait to be sent{after}; buffer_memory allows {limit_bytes}")
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes


class DeliveryTimeout(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may be written all the same."""

    def __init__(self, partition: TopicPartition, timeout_ms: int, last: BaseException | None) -> None:
        because = f": {last}" if last is not None else ""
        super().__init__(f"{partition} did not acknowledge a batch within {timeout_ms} ms{because}")
        self.partition = partition
        self.timeout_ms = timeout_ms
        self.last = last
