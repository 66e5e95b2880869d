"""Records out of fetched pieces of partitions. The work is native (`_records.pyx`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.consumer._records import Cursor, end_of
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import Codec
from ottla.protocol.topics import TopicPartition

__all__ = ["Cursor", "Decoded", "decode", "decompression_ms", "end_of"]

# How many compressed bytes a core unfolds in a millisecond, cautiously.
_BYTES_PER_MS = {Codec.GZIP: 50_000, Codec.SNAPPY: 200_000, Codec.LZ4: 200_000, Codec.ZSTD: 100_000}


class Decoded(NamedTuple):
    """Records from some offset on, and the offset to fetch next."""

    records: list[ConsumerRecord]
    next_offset: int


def decode(
    partition: TopicPartition,
    data: bytes | memoryview,
    position: int,
    aborted: Sequence[AbortedTransaction] | None = None,
    *,
    check_crcs: bool = True,
) -> Decoded:
    """Return the records at or above `position`.

    Batches begin before the offset that was asked for and may be cut off at the end; control records are
    nobody's business. With `aborted` records of those transactions are left out (KIP-98). The next offset
    also passes batches that compaction emptied. Raises CorruptMessage.
    """
    cursor = Cursor(partition, data, position, abortions(aborted), check_crcs=check_crcs)
    records: list[ConsumerRecord] = []
    while (record := cursor.read()) is not None:
        records.append(record)
    return Decoded(records, cursor.position)


def abortions(aborted: Sequence[AbortedTransaction] | None) -> list[tuple[int, int]] | None:
    """Bring aborted transactions into the shape that cursors take."""
    return [(each.first_offset, each.producer_id) for each in aborted] if aborted else None


def decompression_ms(cursor: Cursor) -> float:
    """Estimate how long decompressing all that lies ahead of a cursor takes."""
    sizes = cursor.compressed_sizes()
    return sum(size / _BYTES_PER_MS.get(Codec(codec), 50_000) for codec, size in sizes.items() if codec <= 4)
