"""The rules of one append: the topic and the origin of batches choose among the checks and changes.

The checks of batches are in `batch_validation`, conversion and recompression in `batch_preparation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.log.append.batch_preparation import needs_preparation, prepare, target_codec
from ottla.broker.log.append.batch_validation import TimestampLimits, check_size
from ottla.broker.log.append.record_checks import check_records, reads_records
from ottla.protocol.errors import InvalidRecord, InvalidTimestamp, RecordListTooLarge
from ottla.protocol.records import (
    BatchHeader,
    all_magic_2,
    legacy,
    magic_at,
    read_headers,
    set_log_append_time,
    split_batches,
    validate_batch,
    validate_batches,
)

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

Buffer = bytes | bytearray | memoryview
CONTROL: Final = 0x20
"""The attribute bit of control batches."""
LOG_APPEND_TIME: Final = 0x08
"""The attribute bit of batches whose records have the time of their append."""
_NEVER: Final = 2**63 - 1


class AppendOrigin(Enum):
    """The source of an append: clients are checked most, batches of another broker's log only for damage."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


class Appended(NamedTuple):
    """The result of an append. A `duplicate` was appended before: the offsets are those it got then."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic stamps records itself."""
    log_start_offset: int
    duplicate: bool
    size: int

    @classmethod
    def now(
        cls, base_offset: int, next_offset: int, log_append_time_ms: int, log_start_offset: int, size: int
    ) -> Appended:
        """The result of an append that was no duplicate."""
        # The constructor of a NamedTuple takes twice as long.
        fields = (base_offset, next_offset - 1, log_append_time_ms, log_start_offset, False, size)
        return tuple.__new__(cls, fields)


class OffsetsOutOfOrder(ValueError):
    """A follower was given records that do not continue its log."""


class AppendRules:
    """The checks and changes that one topic's configuration asks for."""

    __slots__ = (
        "_codec",
        "_config",
        "_limits",
        "_reads_records",
        "flush_messages",
        "is_plain",
        "max_bytes",
        "max_plain_bytes",
        "stamps",
    )

    def __init__(self, config: LogConfig) -> None:
        self._config = config
        self._limits = TimestampLimits(config)
        self._codec = target_codec(config)
        self._reads_records = reads_records(config)
        self.stamps = config.message_timestamp_type == "LogAppendTime"
        """Whether the broker stamps the records."""
        self.is_plain = not (self.stamps or self._limits or config.compact or self._codec is not None)
        """Whether the topic asks for nothing beyond what every topic needs."""
        self.max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self.flush_messages = config.flush_messages
        durable = config.flush_before_acknowledge or self.flush_messages < _NEVER
        self.max_plain_bytes = self.max_bytes if self.is_plain and not durable else 0
        """The largest append that may take the fast path of the log end; 0 sends all through `Log.append`."""

    def check(self, batches: Buffer, headers: Sequence[BatchHeader], origin: AppendOrigin) -> bool:
        """Check sizes and attributes; says whether an idempotent producer wrote any of the batches.

        Raises `MessageTooLarge`, `RecordListTooLarge`, `InvalidRecord` and `InvalidTimestamp`.
        """
        is_large, idempotent = len(batches) > self.max_bytes, False
        if is_large:
            check_size(headers, self._config.max_message_bytes)
        for header in headers:
            if header.attributes & CONTROL and origin is AppendOrigin.CLIENT:
                raise InvalidRecord("control batches are written by brokers only")
            if header.attributes & LOG_APPEND_TIME and origin is AppendOrigin.CLIENT:
                raise InvalidTimestamp("only brokers give records the time of their append (LogAppendTime)")
            if header.producer_id >= 0:
                if header.base_sequence < 0 and origin is AppendOrigin.CLIENT:
                    raise InvalidRecord(f"a batch of a producer begins with sequence {header.base_sequence}")
                idempotent = True
        if not headers:
            raise InvalidRecord("there are no records")
        if is_large and len(batches) > self._config.segment_bytes:
            raise RecordListTooLarge(
                f"{len(batches)} bytes in one append, segment.bytes is {self._config.segment_bytes}"
            )
        return idempotent

    def adapt(
        self, batches: Buffer, headers: list[BatchHeader], now_ms: int, origin: AppendOrigin, opened: bool
    ) -> tuple[Buffer, list[BatchHeader]]:
        """Check the records of clients, recompress and stamp, as far as the topic asks for it.

        The records of batches that were `opened` (`batch_preparation.opened`) have been checked.
        """
        if self._reads_records and origin is AppendOrigin.CLIENT and not opened:
            batches, headers = check_records(batches, headers, self._config, self._limits, now_ms)
        if self._codec is not None and needs_preparation(batches, self._config):
            batches = prepare(batches, self._config)
            headers = read_headers(batches)
        if self.stamps:
            batches = bytearray(batches)
            set_log_append_time(batches, now_ms)
            headers = read_headers(batches)
        return batches, headers


def largest_timestamp(headers: Sequence[BatchHeader], base_offset: int) -> tuple[int, int]:
    """The largest timestamp of batches that get offsets from `base_offset` on, and the offset that has it."""
    largest, at, offset = -1, base_offset, base_offset
    for header in headers:
        offset += header.last_offset_delta + 1
        if header.max_timestamp > largest:
            largest, at = header.max_timestamp, offset - 1
    return largest, at


class ReplicatedBatches(NamedTuple):
    """Batches from the leader's log, checked: where they begin and end, and their largest timestamp."""

    base_offset: int
    next_offset: int
    largest: tuple[int, int]
    """The largest timestamp, and the offset that has it."""
    headers: list[BatchHeader]
    """Empty for message formats before v2."""


def replicated_batches(batches: Buffer, log_start_offset: int, log_end_offset: int) -> ReplicatedBatches:
    """Check fetched batches. Raises `CorruptMessage`, `InvalidRecord` and `OffsetsOutOfOrder`."""
    if not all_magic_2(batches):
        return _replicated_legacy(batches, log_start_offset, log_end_offset)
    headers = validate_batches(batches)
    offsets = [(header.base_offset, header.last_offset) for header in headers]
    base_offset = _check_order(offsets, log_start_offset, log_end_offset)
    largest = max(headers, key=lambda header: header.max_timestamp)
    return ReplicatedBatches(
        base_offset, headers[-1].next_offset, (largest.max_timestamp, largest.last_offset), headers
    )


def _replicated_legacy(batches: Buffer, log_start_offset: int, log_end_offset: int) -> ReplicatedBatches:
    spans = _spans_of(batches)
    offsets = [(span.last_offset, span.last_offset) for span in spans]
    base_offset = _check_order(offsets, log_start_offset, log_end_offset)
    largest = max(spans, key=lambda span: span.max_timestamp)
    return ReplicatedBatches(
        base_offset, spans[-1].last_offset + 1, (largest.max_timestamp, largest.last_offset), []
    )


def _check_order(offsets: list[tuple[int, int]], log_start_offset: int, log_end_offset: int) -> int:
    """Check that offsets rise from the log's end; only an empty log may begin within the first batch."""
    if not offsets:
        raise InvalidRecord("there are no records")
    first = offsets[0]
    empty = log_start_offset == log_end_offset
    if first[0] < log_end_offset and not (empty and first[1] >= log_end_offset):
        raise OffsetsOutOfOrder(f"records from offset {first[0]} on for a log that ends at {log_end_offset}")
    for (_, before), (base, last) in pairwise(offsets):
        if base <= before or last < base:
            raise OffsetsOutOfOrder(f"offset {base} follows {before}")
    return first[0]


class _Span(NamedTuple):
    """The last offset and the largest timestamp of an entry of any magic."""

    last_offset: int
    max_timestamp: int


def _spans_of(batches: Buffer) -> list[_Span]:
    """Check entries of any magic, also 0 and 1 of older brokers. Raises `CorruptMessage`."""
    spans = []
    for batch in split_batches(batches):
        if magic_at(batch) == 2:
            header = validate_batch(batch)
            spans.append(_Span(header.last_offset, header.max_timestamp))
        else:
            entry = legacy.read_entry(batch)
            spans.append(_Span(entry.offset, entry.timestamp_ms))
    return spans
