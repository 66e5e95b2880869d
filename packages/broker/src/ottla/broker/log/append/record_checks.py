"""The check of every record of a client's batch, before the batch is acknowledged.

A stored record that no client can read stops every reader of its partition, so nothing unread is
acknowledged. The fast path walks plain records natively (`_log_end.pyx`); what it does not take comes here,
where the mistake gets its error. Two things are refused that Apache Kafka stores. Offset deltas that are not
0, 1, 2, ... in a batch without compression: with the right count it has two records at one offset, or some
behind its end, which consumers skip. And bytes behind a gzip or lz4 frame: Java's readers pass over them,
others stop there. An lz4 frame with linked blocks, a second frame or a skippable one is refused, as Apache
Kafka does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.log.append.batch_validation import (
    MAX_OPENED_BYTES,
    KeylessRecords,
    RecordsOutOfTime,
    TimestampLimits,
    refused,
)
from ottla.protocol.errors import InvalidRecord, UnsupportedCompressionType
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    BatchHeader,
    Buffer,
    Codec,
    DecompressedTooLarge,
    RecordScan,
    UnreadableRecords,
    crc32c,
    read_headers,
    scan_in_blocks,
    scan_records,
    split_batches,
    validate_batches,
)
from ottla.protocol.records.compressed_frames import is_in_many_blocks

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig

MAX_INLINE_PACKED_BYTES: Final = 256 * 1024
"""Larger compressed batches are opened on a thread."""
MAX_INLINE_GZIP_BYTES: Final = 32 * 1024
"""gzip data of more bytes is opened on a thread: a block with Huffman codes of its own may have
12 bytes, and costs a microsecond or two. Only unfolding counts such blocks."""
FEW_PACKED_BYTES: Final = 8 * 1024
"""Compressed bytes that take no long time to open, even in blocks of one byte each."""
MAX_INLINE_PLAIN_BYTES: Final = 4 * 1024 * 1024
"""Larger batches without compression are read on a thread: these have half a million records at most."""
MAX_INLINE_BYTES: Final = 512 * 1024
"""Compressed batches that unfold to more are opened on a thread: these take a millisecond or two."""
MOST_UNFOLDED: Final = 4
"""Compressed batches that are opened together on the event loop."""
_CODEC: Final = 0x07
_CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 17, 21, 35


def validated(batches: Buffer) -> list[BatchHeader]:
    """Check checksums and counts of a client's v2 batches; return their headers.

    Raises `CorruptMessage` for damage, which a retry may mend, and `InvalidRecord` for what was sent like
    that.
    """
    try:
        return validate_batches(batches, dense=True)
    except UnreadableRecords as error:
        raise InvalidRecord(str(error)) from None


def reads_records(config: LogConfig) -> bool:
    """Whether a topic's settings require that every record of a client is read."""
    return config.record_validation == "all" or config.compact or bool(TimestampLimits(config))


def takes_long(batches: Buffer, config: LogConfig) -> bool:
    """Whether the records of v2 batches are checked on a thread. Raises CorruptMessage for torn ones."""
    if not reads_records(config):
        return False
    found = list(split_batches(batches))
    return are_many_packed(found) or any(map(_takes_long, found))


def are_many_packed(batches: Iterable[Buffer]) -> bool:
    """Whether so many v2 batches are compressed, or so much is gzip, that opening all would hold the loop."""
    packed = [batch for batch in batches if is_packed(batch)]
    gzip_bytes = sum(len(batch) for batch in packed if _codec(batch) == Codec.GZIP)
    return len(packed) > MOST_UNFOLDED or gzip_bytes > MAX_INLINE_GZIP_BYTES


def is_packed(batch: Buffer) -> bool:
    """Whether a v2 batch is compressed."""
    return bool(_codec(batch))


def is_slow_to_open(batch: Buffer) -> bool:
    """Whether the compressed bytes of a v2 batch alone, unfolded or not, are too many to open on the loop."""
    size = len(batch)
    if size > MAX_INLINE_PACKED_BYTES or (size > MAX_INLINE_GZIP_BYTES and _codec(batch) == Codec.GZIP):
        return True
    return size > FEW_PACKED_BYTES and is_in_many_blocks(_codec(batch), batch[BATCH_HEADER_SIZE:])


def _codec(batch: Buffer) -> int:
    return batch[_ATTRIBUTES_AT + 1] & _CODEC


def _takes_long(batch: memoryview) -> bool:
    if not is_packed(batch):
        return len(batch) > MAX_INLINE_PLAIN_BYTES
    if is_slow_to_open(batch):
        return True
    try:
        scan_records(batch, max_decompressed_bytes=MAX_INLINE_BYTES)
    except DecompressedTooLarge:
        return True
    except (UnreadableRecords, UnsupportedCompressionType):
        return False  # the append raises the error
    return False


def check_records(
    batches: Buffer, headers: Sequence[BatchHeader], config: LogConfig, limits: TimestampLimits, now_ms: int
) -> tuple[Buffer, list[BatchHeader]]:
    """Read every record of a client's batches; return them with the largest timestamps that they really have.

    It may take long (`takes_long`). A largest timestamp that is not the records' is corrected in a copy, and
    with it the checksum, as Apache Kafka does. Raises `InvalidRecord`, `RecordsOutOfTime`, and for batches
    that are too large to be compacted `MessageTooLarge`.
    """
    largest: list[int] = []
    for header, batch in _each(batches, headers):
        scan = _scan(batch, config)
        if config.compact and scan.keyless_count and not header.is_control:
            raise _keyless(batch, scan.keyless_count)
        if limits and (said := limits.violation(scan.min_timestamp, scan.max_timestamp, now_ms)):
            raise _out_of_time(batch, limits, said, now_ms)
        largest.append(scan.max_timestamp)
    if all(header.max_timestamp == newest for header, newest in zip(headers, largest, strict=True)):
        return batches, list(headers)
    corrected = bytearray(batches)
    for header, newest in zip(headers, largest, strict=True):
        if header.max_timestamp != newest:
            _set_max_timestamp(memoryview(corrected)[header.position :][: header.size_in_bytes], newest)
    return corrected, read_headers(corrected)


def _each(batches: Buffer, headers: Sequence[BatchHeader]) -> Iterator[tuple[BatchHeader, memoryview]]:
    view = memoryview(batches)
    for header in headers:
        yield header, view[header.position : header.position + header.size_in_bytes]


def _scan(batch: memoryview, config: LogConfig) -> RecordScan:
    try:
        if config.compact:  # the cleaner has to open what it compacts
            return scan_records(batch, max_decompressed_bytes=MAX_OPENED_BYTES, dense=True)
        try:
            return scan_records(batch, max_decompressed_bytes=MAX_INLINE_BYTES, dense=True)
        except DecompressedTooLarge:
            return scan_in_blocks(batch, dense=True)
    except UnreadableRecords as error:
        raise InvalidRecord(f"the records cannot be read: {error}") from None


def _keyless(batch: memoryview, count: int) -> KeylessRecords:
    records = "record has" if count == 1 else "records have"
    error = KeylessRecords(f"{count} {records} no key, which a compacted topic needs")
    error.record_errors = refused(
        batch, lambda record: "a compacted topic needs a key" if record.key is None else None
    )
    return error


def _out_of_time(batch: memoryview, limits: TimestampLimits, said: str, now_ms: int) -> RecordsOutOfTime:
    error = RecordsOutOfTime(said)
    error.record_errors = refused(
        batch, lambda record: limits.violation(record.timestamp_ms, record.timestamp_ms, now_ms)
    )
    return error


def _set_max_timestamp(batch: memoryview, timestamp_ms: int) -> None:
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, timestamp_ms)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))
