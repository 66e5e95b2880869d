"""Errors of stream processing."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.client.errors import ClientError
from ottla.protocol.topics import TopicPartition


class StreamsError(ClientError):
    """The base of all errors of stream processing; the message says what to check."""


class RecordError(StreamsError):
    """An error about one record: it carries the partition and the offset."""

    def __init__(
        self, what: str, partition: TopicPartition, offset: int, cause: BaseException | None
    ) -> None:
        because = "" if cause is None else f": {type(cause).__name__}: {cause}"
        super().__init__(
            f"{what} (topic {partition.topic}, partition {partition.partition}, offset {offset}){because}"
        )
        self.partition = partition
        self.offset = offset
        self.cause = cause


class HandlerFailed(RecordError):
    """A handler failed and its failure stops the processor. Nothing is committed at or past the record."""

    def __init__(
        self, partition: TopicPartition, offset: int, cause: BaseException, attempts: int = 1
    ) -> None:
        super().__init__(f"the handler failed in attempt {attempts}", partition, offset, cause)
        self.attempts = attempts


class HandlerTimedOut(RecordError):
    """A handler ran longer than `handler_timeout_ms` and was cancelled."""

    def __init__(self, partition: TopicPartition, offset: int, timeout_ms: int) -> None:
        super().__init__(f"the handler did not end within {timeout_ms} ms", partition, offset, None)
        self.timeout_ms = timeout_ms


class HandlerCancelled(RecordError):
    """A handler was cancelled, and not by the processor: by itself, or by what it awaited."""

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__("the handler was cancelled by itself", partition, offset, None)


class OrderFailed(RecordError):
    """The function that orders records failed for a record, or returned a key that cannot be hashed."""

    def __init__(self, partition: TopicPartition, offset: int, cause: BaseException) -> None:
        super().__init__("the order function failed", partition, offset, cause)


class OutputFailed(RecordError):
    """A record was handled, and what it sent was not acknowledged. The record is not finished."""

    def __init__(self, partition: TopicPartition, offset: int, cause: BaseException) -> None:
        super().__init__("the outputs of a record were not acknowledged", partition, offset, cause)


class OffsetsNotCommitted(StreamsError):
    """Offsets were not committed: finished records after the last commit may be handled again."""

    def __init__(self, offsets: Iterable[tuple[TopicPartition, int]], cause: BaseException) -> None:
        self.offsets = tuple(offsets)
        self.cause = cause
        where = "; ".join(
            f"topic {each.topic}, partition {each.partition}, offset {offset}"
            for each, offset in self.offsets
        )
        super().__init__(f"not committed: {where}: {type(cause).__name__}: {cause}")
