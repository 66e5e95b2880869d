"""Validation of batches from clients: size, timestamps, keys of records. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import InvalidRecord, InvalidTimestamp, KafkaError, MessageTooLarge
from ottla.protocol.records import BatchHeader, DecompressedTooLarge, Record, iter_records

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

_MAX_LONG: Final = 2**63 - 1
_CONTROL: Final = 0x20
_CODEC: Final = 0x07
MAX_OPENED_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of a batch's decompressed records, where the broker has to look into them."""
_MAX_NAMED_RECORDS: Final = 1_000


class RefusedRecords(KafkaError):
    """A batch is refused for some of its records (KIP-467).

    `record_errors` has the index of each in its batch and its fault; the first 1,000 of many.
    """

    record_errors: tuple[tuple[int, str], ...] = ()


class KeylessRecords(RefusedRecords, InvalidRecord):
    """Records without a key for a topic that is compacted."""


class RecordsOutOfTime(RefusedRecords, InvalidTimestamp):
    """Records with timestamps too far from the broker's clock."""


def check_size(headers: Sequence[BatchHeader], max_message_bytes: int) -> None:
    """Raise `MessageTooLarge` for a batch above the topic's limit."""
    for header in headers:
        if header.size_in_bytes > max_message_bytes:
            raise MessageTooLarge(
                f"a batch of {header.size_in_bytes} bytes, max.message.bytes is {max_message_bytes}"
            )


class TimestampLimits:
    """How far timestamps may be from the broker's clock; false when there is no limit."""

    __slots__ = ("after_ms", "before_ms")

    def __init__(self, config: LogConfig) -> None:
        both = config.message_timestamp_difference_max_ms
        if config.message_timestamp_type == "LogAppendTime":  # the broker gives the records their time
            self.before_ms = self.after_ms = _MAX_LONG
            return
        self.before_ms = min(both, config.message_timestamp_before_max_ms)
        self.after_ms = min(both, config.message_timestamp_after_max_ms)

    def __bool__(self) -> bool:
        return self.before_ms != _MAX_LONG or self.after_ms != _MAX_LONG

    def violation(self, first_ms: int, last_ms: int, now_ms: int) -> str | None:
        """Describe the fault unless a batch's smallest and largest timestamps are within the limits."""
        if first_ms >= 0 and now_ms - first_ms > self.before_ms:
            return f"timestamp {first_ms} is more than {self.before_ms} ms before {now_ms}"
        if last_ms - now_ms > self.after_ms:
            return f"timestamp {last_ms} is more than {self.after_ms} ms after {now_ms}"
        return None


def refused(batch: memoryview, violation: Callable[[Record], str | None]) -> tuple[tuple[int, str], ...]:
    """The index of each record that violates a rule, and the violation; the first 1,000 of many."""
    records = iter_records(batch, max_decompressed_bytes=MAX_OPENED_BYTES)
    found = ((index, violation(record)) for index, record in enumerate(records))
    try:
        return tuple(islice(((index, said) for index, said in found if said is not None), _MAX_NAMED_RECORDS))
    except DecompressedTooLarge:
        return ()  # the batch is refused all the same
