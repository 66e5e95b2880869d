"""Validation of batches from clients: size, timestamps, keys of records. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from ottla.protocol.records import BatchHeader, scan_records

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

_MAX_LONG: Final = 2**63 - 1
_CONTROL: Final = 0x20
_CODEC: Final = 0x07


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
        self.before_ms = min(both, config.message_timestamp_before_max_ms)
        self.after_ms = min(both, config.message_timestamp_after_max_ms)

    def __bool__(self) -> bool:
        return self.before_ms != _MAX_LONG or self.after_ms != _MAX_LONG

    def check(self, first_ms: int, last_ms: int, now_ms: int) -> None:
        """Raise `InvalidTimestamp` unless a batch's smallest and largest timestamps are within the limits."""
        if first_ms >= 0 and now_ms - first_ms > self.before_ms:
            raise InvalidTimestamp(f"timestamp {first_ms} is more than {self.before_ms} ms before {now_ms}")
        if last_ms - now_ms > self.after_ms:
            raise InvalidTimestamp(f"timestamp {last_ms} is more than {self.after_ms} ms after {now_ms}")


def check_timestamps(
    batches: memoryview, headers: Sequence[BatchHeader], limits: TimestampLimits, now_ms: int
) -> None:
    """Raise `InvalidTimestamp` for records too far from the broker's clock.

    Compressed batches are checked by the first and largest timestamp of their header.
    """
    for header in headers:
        first, last = header.base_timestamp, header.max_timestamp
        if not header.attributes & _CODEC:
            scan = scan_records(batches[header.position : header.position + header.size_in_bytes])
            first, last = scan.min_timestamp, max(last, scan.max_timestamp)
        limits.check(min(first, last), last, now_ms)


def check_keys(batches: memoryview, headers: Sequence[BatchHeader]) -> None:
    """Raise `InvalidRecord` for a record without a key: compaction needs one."""
    for header in headers:
        if header.attributes & _CONTROL:
            continue
        scan = scan_records(batches[header.position : header.position + header.size_in_bytes])
        if scan.keyless_count:
            raise InvalidRecord(f"{scan.keyless_count} records have no key, which a compacted topic needs")
