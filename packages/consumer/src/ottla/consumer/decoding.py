"""Records out of a fetched piece of a partition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.consumer.record import ConsumerRecord
from ottla.protocol.messages.fetch import AbortedTransaction
from ottla.protocol.records import (
    Record,
    decode_records,
    magic_at,
    read_header,
    split_batches,
)
from ottla.protocol.topics import TopicPartition


class Decoded(NamedTuple):
    """Records from some offset on, and the offset to fetch next."""

    records: list[ConsumerRecord]
    next_offset: int


def decode(
    partition: TopicPartition,
    data: bytes | memoryview,
    position: int,
    aborted: Sequence[AbortedTransaction] | None = None,
) -> Decoded:
    """Return the records at or above `position`.

    Batches begin before the offset that was asked for and may be cut off at the end; control records are
    nobody's business. With `aborted` records of those transactions are left out (KIP-98). The next offset
    also passes batches that compaction emptied. Raises CorruptMessage.
    """
    records: list[ConsumerRecord] = []
    following = position
    filtered = _Aborted(aborted or ())
    for batch in split_batches(data, torn_tail=True):
        kept = _records_of(batch, filtered)
        records += (_named(partition, each) for each in kept if each.offset >= position)
        following = max(following, _end_of(batch))
    return Decoded(records, following)


def _named(partition: TopicPartition, record: Record) -> ConsumerRecord:
    topic, index = partition
    return ConsumerRecord(
        topic, index, record.offset, record.timestamp_ms, record.key, record.value, record.headers
    )


def _records_of(batch: memoryview, filtered: _Aborted) -> Iterable[Record]:
    if magic_at(batch) == 2:
        header = read_header(batch)
        if header.is_control:
            filtered.ended(header.producer_id)
            return ()
        if header.is_transactional and filtered.covers(header.producer_id, header.base_offset):
            return ()
    return decode_records(batch)


def _end_of(batch: memoryview) -> int:
    if magic_at(batch) == 2:
        return read_header(batch).next_offset
    # Before v2 the offset in front is that of the last record inside.
    return int.from_bytes(batch[:8], "big") + 1


class _Aborted:
    """Which producers are in an aborted transaction at the place that is being read."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda each: each.first_offset)
        self._open: set[int] = set()

    def covers(self, producer_id: int, base_offset: int) -> bool:
        """Say whether a transactional batch belongs to an aborted transaction."""
        while self._coming and self._coming[0].first_offset <= base_offset:
            self._open.add(self._coming.pop(0).producer_id)
        return producer_id in self._open

    def ended(self, producer_id: int) -> None:
        """Take note that a producer's transaction ended here."""
        self._open.discard(producer_id)
