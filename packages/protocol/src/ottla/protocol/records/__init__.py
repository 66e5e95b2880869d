"""Record batches: read, check, change in place, build, and convert between the formats (magic 0, 1 and 2).

A v2 batch is bytes. The broker needs its 61-byte header (`read_header`, `validate_batch`) and patches it in
place (`assign_offsets`); records are opened only where they must be (`iter_records`, `decode_records`,
`scan_records`). Nothing here reads outside the given buffer: inconsistent lengths and counts raise
`CorruptRecords`, a `CorruptMessage`. The work on bytes is native (`_codec.pyx`).
"""

from collections.abc import Iterator

from ottla.protocol.errors import KafkaError, UnsupportedCompressionType
from ottla.protocol.records import legacy as _legacy
from ottla.protocol.records._codec import (
    BatchBuilder,
    BatchHeader,
    BlockScanner,
    Record,
    RecordIterator,
    RecordScan,
    all_magic_2,
    assign_offsets,
    crc32c,
    magic_at,
    murmur2,
    read_header,
    read_headers,
    retain_records,
    scan_records,
    set_log_append_time,
    set_producer_state,
    split_batches,
    validate_batch,
    validate_batches,
)
from ottla.protocol.records.compressed_frames import check_lz4_frame
from ottla.protocol.records.compression import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    Buffer,
    compress,
    decompress,
    decompressed_blocks,
)
from ottla.protocol.records.control import (
    ControlType,
    EndTransactionMarker,
    end_transaction_marker,
    read_end_transaction_marker,
)
from ottla.protocol.records.conversion import convert_down, convert_to_v2, recompress
from ottla.protocol.records.errors import CorruptRecords, DecompressedTooLarge, UnreadableRecords
from ottla.protocol.records.types import NO_TIMESTAMP, Codec, TimestampType

__all__ = [
    "BATCH_HEADER_SIZE",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "NO_TIMESTAMP",
    "BatchBuilder",
    "BatchHeader",
    "BlockScanner",
    "Buffer",
    "Codec",
    "ControlType",
    "CorruptRecords",
    "DecompressedTooLarge",
    "EndTransactionMarker",
    "Record",
    "RecordIterator",
    "RecordScan",
    "TimestampType",
    "UnreadableRecords",
    "all_magic_2",
    "assign_offsets",
    "compress",
    "convert_down",
    "convert_to_v2",
    "crc32c",
    "decode_records",
    "decompress",
    "decompressed_blocks",
    "end_transaction_marker",
    "iter_records",
    "magic_at",
    "murmur2",
    "read_end_transaction_marker",
    "read_header",
    "read_headers",
    "recompress",
    "retain_records",
    "scan_in_blocks",
    "scan_records",
    "set_log_append_time",
    "set_producer_state",
    "split_batches",
    "validate_batch",
    "validate_batches",
    "why_unreadable",
]

BATCH_HEADER_SIZE = 61
"""Bytes of a v2 batch before its records."""


def iter_records(
    batches: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of one or more whole entries of any magic, in order, their fields made when asked for.

    Control records are included: the batch's header marks them. Checksums are not checked, `validate_batch`
    does that. Records keep the buffer alive; where it may change, use `decode_records`.
    Raises CorruptRecords at the first record that is malformed, and DecompressedTooLarge when a batch unfolds
    to more than `max_decompressed_bytes`.
    """
    size = len(batches)
    if size >= BATCH_HEADER_SIZE and magic_at(batches) == 2 and read_header(batches).size_in_bytes == size:
        return RecordIterator(batches, max_decompressed_bytes=max_decompressed_bytes)
    return _iter_entries(list(split_batches(batches)), max_decompressed_bytes)


def scan_in_blocks(batch: Buffer, *, dense: bool = False) -> RecordScan:
    """`scan_records` in bounded memory: the records of one v2 batch are unfolded block after block.

    A batch that unfolds to gigabytes takes seconds: the walk belongs on a thread. Raises CorruptRecords
    as `scan_records` does, but never for the size.
    """
    scanner = BlockScanner(batch, dense=dense)
    codec, packed = read_header(batch).codec, memoryview(batch)[BATCH_HEADER_SIZE:]
    if dense and codec is Codec.LZ4:
        check_lz4_frame(packed)
    for block in decompressed_blocks(codec, packed):
        scanner.feed(block)
    return scanner.finish()


def why_unreadable(
    entry: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> str | None:
    """Return why the records of one entry of any magic cannot be read, None if they can.

    Raises CorruptRecords where the checksum is wrong: the bytes are not those that were written.
    """
    if magic_at(entry) != 2:
        return _why_unreadable_legacy(entry, max_decompressed_bytes)
    try:
        validate_batch(entry)
        scan_records(entry, max_decompressed_bytes=max_decompressed_bytes)
    except (UnreadableRecords, UnsupportedCompressionType, DecompressedTooLarge) as error:
        return str(error)
    return None


def _why_unreadable_legacy(entry: Buffer, max_decompressed_bytes: int) -> str | None:
    message = _legacy.read_entry(entry)
    try:
        for _ in _legacy.records_of(message, max_decompressed_bytes=max_decompressed_bytes):
            pass
    except KafkaError as error:
        return str(error)
    return None


def _iter_entries(entries: list[memoryview], max_decompressed_bytes: int) -> Iterator[Record]:
    for entry in entries:
        if magic_at(entry) == 2:
            yield from RecordIterator(entry, max_decompressed_bytes=max_decompressed_bytes)
        else:
            yield from _legacy.iter_records(
                entry, max_decompressed_bytes=max_decompressed_bytes, check_crc=False
            )


def decode_records(
    batches: Buffer, *, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """`iter_records` as a list of records with bytes of their own: the buffer may be freed or changed."""
    records = iter_records(batches, max_decompressed_bytes=max_decompressed_bytes)
    return (
        records.read_all()
        if isinstance(records, RecordIterator)
        else [_detached(record) for record in records]
    )


def _detached(record: Record) -> Record:
    return Record(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
