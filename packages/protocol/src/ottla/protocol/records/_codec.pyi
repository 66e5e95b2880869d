from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

from ottla.protocol.records.compression import Buffer
from ottla.protocol.records.types import Codec, TimestampType

def crc32c(data: Buffer, value: int = 0) -> int:
    """The CRC-32C of `data`, continued from `value`. Above 16 KiB it works without the GIL."""

def crc32c_implementations() -> list[str]:
    """Names of the routines this processor can run, slowest first; the last one is in use."""

def crc32c_with(implementation: str, data: Buffer, value: int = 0) -> int:
    """`crc32c` by one named routine: for tests and benchmarks."""

def crc32c_leaves_dirty(implementation: str, data: bytes) -> bool | None:
    """Whether a routine leaves upper halves of vector registers dirty; None where the processor cannot tell.

    Dirty halves slow down every SSE instruction that the process executes afterwards.
    """

def murmur2(data: Buffer) -> int:
    """Java's `Utils.murmur2`, a signed 32-bit hash; a key's partition is `(murmur2(key) & 0x7FFFFFFF) %
    count`.
    """

@final
class BatchHeader:
    """The 61 bytes in front of a v2 batch's records, with Kafka's names."""

    @property
    def position(self) -> int:
        """The batch's position in the buffer that it was read from."""
    @property
    def base_offset(self) -> int: ...
    @property
    def batch_length(self) -> int:
        """Bytes after the length field: `size_in_bytes` - 12."""
    @property
    def partition_leader_epoch(self) -> int: ...
    @property
    def magic(self) -> int: ...
    @property
    def crc(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int:
        """Milliseconds; the base of the records' timestamp deltas."""
    @property
    def max_timestamp(self) -> int:
        """Milliseconds; under LOG_APPEND_TIME the time of every record."""
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def size_in_bytes(self) -> int:
        """The whole batch."""
    @property
    def last_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def codec(self) -> Codec:
        """Raises UnsupportedCompressionType for bits that name no codec."""
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...
    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which tombstones may be removed (KIP-534)."""
    @property
    def has_producer_id(self) -> bool: ...
    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, which wraps from 2147483647 to 0; -1 without a base sequence."""

def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The v2 header at `position`; its batch need not be there whole, and nothing but magic and length is
    checked.

    Raises CorruptRecords when 61 bytes are not there, the magic is not 2, or the length is below a header's.
    """

def read_headers(buffer: Buffer, *, torn_tail: bool = False) -> list[BatchHeader]:
    """The headers of all v2 batches in `buffer`, with their positions; `torn_tail` as for `split_batches`."""

def magic_at(buffer: Buffer, position: int = 0) -> int:
    """The magic of the entry at `position`, unchecked. Raises CorruptRecords when it is not in the buffer."""

def all_magic_2(buffer: Buffer) -> bool:
    """Whether every entry is a v2 batch, so that nothing needs conversion. Raises CorruptRecords for a torn
    one.
    """

def split_batches(buffer: Buffer, *, torn_tail: bool = False) -> Iterator[memoryview]:
    """Whole entries of any magic, as views of `buffer`, in order; checksums are not checked.

    Raises CorruptRecords at one whose length is too small, whose magic does not exist, or that is cut off;
    with `torn_tail` a cut-off one at the end, as a fetch response may have, just ends the iteration.
    """

def validate_batch(batch: Buffer, *, dense: bool = False, check_records: bool = False) -> BatchHeader:
    """Check that `batch` is exactly one v2 batch with the right checksum and credible counts; return its
    header.

    `dense` is for what producers send: at least one record, and offset deltas without gaps. (Compaction
    leaves gaps, and empty batches.) `check_records` also walks the records when they are not compressed:
    every length, the offset deltas, and the count must add up; `scan_records` does that for compressed ones.
    Raises CorruptRecords, which is UnreadableRecords where the checksum is right, and
    UnsupportedCompressionType for a codec that does not exist.
    """

def validate_batches(
    buffer: Buffer, *, dense: bool = False, check_records: bool = False
) -> list[BatchHeader]:
    """`validate_batch` for every batch of a buffer of nothing but v2 batches, in one call."""

@final
class RecordScan:
    """The result of a walk over a batch's records."""

    @property
    def record_count(self) -> int: ...
    @property
    def keyless_count(self) -> int:
        """Records with a null key, which a compacted topic rejects."""
    @property
    def min_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of a record, as the records themselves have it."""
    @property
    def plain_bytes(self) -> int:
        """Bytes of the records without compression."""

def scan_records(batch: Buffer, *, max_decompressed_bytes: int = ..., dense: bool = False) -> RecordScan:
    """Walk the records of one v2 batch, decompressed when need be, without making objects.

    With `dense`, lz4 data has to be one frame that Java's readers take. Raises CorruptRecords as
    `validate_batch` with `check_records`, and DecompressedTooLarge.
    """

@final
class BlockScanner:
    """`scan_records` over the decompressed records of one v2 batch that come in blocks of any size.

    Only its counts are kept between blocks, also where a record is larger than a block.
    """

    def __init__(self, batch: Buffer, *, dense: bool = False) -> None:
        """Take the counts of a batch. Raises CorruptRecords when they cannot be right."""

    def feed(self, block: Buffer) -> None:
        """Walk over the next bytes. Raises UnreadableRecords at the first record that is malformed."""

    def finish(self) -> RecordScan:
        """Return the result once all bytes were fed. Raises UnreadableRecords where records are missing."""

def assign_offsets(batches: bytearray | memoryview, base_offset: int, leader_epoch: int) -> int:
    """Write offsets from `base_offset` on and the leader epoch into every v2 batch, in place; return the next
    offset.

    The checksum covers neither, so it stays right. Raises CorruptRecords for what is not whole v2 batches:
    those in front of it are changed then.
    """

def set_log_append_time(batches: bytearray | memoryview, timestamp_ms: int) -> None:
    """Make `timestamp_ms` the log append time of every v2 batch, in place, and renew the checksums."""

def set_producer_state(
    batch: bytearray | memoryview, producer_id: int, producer_epoch: int, base_sequence: int
) -> None:
    """Give one v2 batch another producer id, epoch and sequence, in place, and renew its checksum."""

@final
class BatchBuilder:
    """Gathers records into one v2 batch of at most `max_bytes`; a single larger record still gets in.

    Raises UnsupportedCompressionType when built with a codec it cannot write. `level` is the codec's own
    scale.
    """

    def __init__(self, max_bytes: int = 16384, *, codec: Codec = ..., level: int | None = None) -> None: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def base_timestamp(self) -> int:
        """The first record's timestamp, -1 while there is none."""
    @property
    def max_timestamp(self) -> int: ...
    @property
    def codec(self) -> Codec: ...
    @property
    def size_in_bytes(self) -> int:
        """The batch as it would be without compression, header included."""
    def __len__(self) -> int: ...
    def append(
        self,
        key: Buffer | None,
        value: Buffer | None,
        timestamp_ms: int,
        headers: Iterable[tuple[str, Buffer | None]] | None = None,
        *,
        offset_delta: int | None = None,
    ) -> int:
        """Add a record; return its offset delta, or -1 when it does not fit and the batch is full.

        `offset_delta` leaves a gap; it must rise. Raises ValueError otherwise, and once the batch is built.
        """
    def append_many(self, values: list[bytes], timestamp_ms: int) -> int:
        """Add a record without key for each value until the batch is full; return how many went in."""
    def build(
        self,
        *,
        base_offset: int = 0,
        partition_leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        control: bool = False,
        log_append_time_ms: int | None = None,
        last_offset_delta: int | None = None,
    ) -> bytes:
        """Finish the batch and return it; the builder takes nothing more.

        `log_append_time_ms` makes it the time of every record. `last_offset_delta` may exceed that of the
        last record, and lets a batch without records be built, as compaction needs. Raises ValueError without
        records.
        """

@final
class Record:
    """One record of any magic. Read from a batch, it makes key, value and headers when they are asked for."""

    def __init__(
        self,
        offset: int,
        timestamp_ms: int,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> None: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int:
        """Create or log append time, as the batch says; -1 in magic 0."""
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """In order, keys may repeat. Key bytes that are not UTF-8 become surrogate escapes and go back as
        such.
        """

@final
class RecordIterator(Iterator[Record]):
    """The records of the v2 batch at the start of `batch`, which it keeps alive.

    Raises CorruptRecords, UnsupportedCompressionType or DecompressedTooLarge at once for the batch, and
    CorruptRecords on the way for a record.
    """

    def __new__(cls, batch: Buffer, *, max_decompressed_bytes: int = ...) -> RecordIterator: ...
    @property
    def header(self) -> BatchHeader: ...
    def __length_hint__(self) -> int: ...
    def __next__(self) -> Record: ...
    def read_all(self, *, detach: bool = True) -> list[Record]:
        """All records not yet read; `detach` gives each its own bytes: the buffer may be freed or changed."""

def retain_records(
    batch: Buffer, keep: Callable[[Record], bool], *, max_decompressed_bytes: int = ...
) -> bytes | bytearray:
    """The v2 batch with only those records for which `keep` is true, for compaction.

    Offsets, times and producer state stay, and `last_offset_delta`: the batch covers the same offsets, if
    need be without any record. Raises as `RecordIterator`.
    """
