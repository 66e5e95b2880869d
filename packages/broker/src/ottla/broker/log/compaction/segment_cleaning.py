"""One pass over a log, on a thread: find the newest offset of each key, rewrite segments without the rest.

The thread works on copies of the segments. When it makes the files of a new one, the log may be gone, and a
new log may have its name: `Cleaning` stops then and removes the files again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.log.compaction.cleaned_transactions import CleanedTransactions
from ottla.broker.log.compaction.cleaning_pace import Pace
from ottla.broker.log.compaction.compaction_rules import emptied, kept_of_legacy, records_of_legacy
from ottla.broker.log.compaction.offset_map import OffsetMap, PlainCopy, retained
from ottla.protocol.errors import KafkaError, UnsupportedCompressionType
from ottla.protocol.records import (
    BATCH_HEADER_SIZE,
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    BatchHeader,
    Buffer,
    DecompressedTooLarge,
    UnreadableRecords,
    legacy,
    magic_at,
    read_header,
)
from ottla.protocol.records import validate_batch as validated
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.indexes import AbortedTransaction
from ottla.protocol.storage.segments import Consume, iter_unconsumed

if TYPE_CHECKING:
    from ottla.broker.log.compaction.cleaned_segment import CleanedSegment
    from ottla.broker.log.segments.segment import Segment

MAX_OPENED_BYTES: Final = DEFAULT_MAX_DECOMPRESSED_BYTES


UNREADABLE: Final = (UnreadableRecords, DecompressedTooLarge, UnsupportedCompressionType)
"""Errors of a batch that has the checksum it was written with: it stays as it is, and supersedes nothing.

A wrong checksum is damage, and ends the pass: the bytes may be another batch's, and other replicas have them.
"""
MOST_NOTED: Final = 100


class MapTooSmall(RuntimeError):
    """One batch has more keys than the offset map takes."""


class LastBatch(NamedTuple):
    """The last batch of a producer: its offset is None if only a marker is known of it."""

    last_offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class CleaningFacts:
    """The terms of one pass, as they were when it began."""

    first_dirty: int
    now_ms: int
    delete_retention_ms: int
    legacy_horizon_ms: int
    """Segments written later keep the tombstones of formats without a delete horizon."""
    aborted: tuple[AbortedTransaction, ...]
    last_batches: Mapping[int, LastBatch]
    io_bytes: int


@dataclass(slots=True)
class CleaningCounts:
    """The bytes and records that one pass has read and written."""

    bytes_read: int = 0
    bytes_written: int = 0


class CleaningPass:
    """One pass over one log: `index` its dirty segments, then `write` group after group."""

    def __init__(self, facts: CleaningFacts, keys: OffsetMap, pace: Pace) -> None:
        self.keys = keys
        self.counts = CleaningCounts()
        self.unreadable: dict[int, str] = {}
        """The first batches whose records cannot be read, by base offset, each with the reason."""
        self._facts = facts
        self._pace = pace
        self._transactions = CleanedTransactions(facts.aborted)

    @cached_property
    def _last_offsets(self) -> list[int]:
        """Those of the last batches of all producers, sorted once a pass: 100,000 take 50 ms with the GIL."""
        found = self._facts.last_batches.values()
        return sorted(batch.last_offset for batch in found if batch.last_offset is not None)

    # ---- the newest offsets

    def index(self, segments: list[tuple[Segment, int]]) -> None:
        """Put the keys of dirty segments, each with its end offset, into the map, until it is full.

        A segment that was indexed whole is clean up to its end, which may be behind its last batch. Raises
        `MapTooSmall`, CorruptStorage, OSError.
        """
        transactions = CleanedTransactions(self._facts.aborted)
        for segment, end_offset in segments:
            if not self._index_segment(segment, transactions):
                if self.keys.latest_offset < self._facts.first_dirty:
                    raise MapTooSmall
                return
            self._reached(end_offset - 1)

    def _index_segment(self, segment: Segment, transactions: CleanedTransactions) -> bool:
        for position, entry in self._entries(segment, self._index_plain):
            with _Located(position):
                if not self._index_entry(entry, transactions):
                    return False
        return True

    def _index_plain(self, entries: memoryview, _position: int) -> int:
        return self.keys.add_plain(entries, self._facts.first_dirty)

    def _index_entry(self, entry: memoryview, transactions: CleanedTransactions) -> bool:
        try:
            is_whole = self._index_readable(entry, transactions)
        except UNREADABLE as error:
            self._note_unreadable(entry, error)
            is_whole = True
        if is_whole:
            self._reached(_last_offset(entry))
        return is_whole

    def _index_readable(self, entry: memoryview, transactions: CleanedTransactions) -> bool:
        if magic_at(entry) != 2:
            return self._index_legacy(entry)
        header = validated(entry)
        if header.is_control:
            transactions.is_empty_at(header, entry)
            return True
        if transactions.is_aborted(header):
            return True
        return self.keys.add(entry, self._facts.first_dirty, max_decompressed_bytes=MAX_OPENED_BYTES)

    def _index_legacy(self, entry: memoryview) -> bool:
        _, records = records_of_legacy(entry, MAX_OPENED_BYTES)
        return all(
            self.keys.put(record.key, record.offset)
            for record in records
            if record.key is not None and record.offset >= self._facts.first_dirty
        )

    def _note_unreadable(self, entry: memoryview, error: KafkaError) -> None:
        if len(self.unreadable) < MOST_NOTED:
            self.unreadable[int.from_bytes(entry[:8], "big")] = str(error)

    def _reached(self, last_offset: int) -> None:
        if last_offset >= self._facts.first_dirty:
            self.keys.latest_offset = last_offset

    # ---- rewriting the segments

    def write(self, segments: list[Segment], cleaned: CleanedSegment) -> None:
        """Write the kept batches of some segments into one, whose files are created first.

        The last batch is kept in any case, without records if need be: the new segment ends where the old
        ones do. Raises CorruptStorage and OSError.
        """
        cleaned.create()
        copy = PlainCopy(self.keys, self._facts.now_ms, self._last_offsets)
        for segment in segments:
            modified_ms = segment.last_modified_ms
            keeps_legacy = modified_ms > self._facts.legacy_horizon_ms
            last_end = segment.size if segment is segments[-1] else -1
            for position, entry in self._entries(segment, self._copying(copy, cleaned, last_end)):
                is_last = position + len(entry) == last_end
                with _Located(position):
                    kept = self._kept_or_unreadable(entry, keeps_legacy)
                if kept is None and is_last:
                    kept = emptied(entry)
                if kept is not entry:
                    cleaned.is_changed = True
                if kept is not None:
                    cleaned.add(kept)
            cleaned.modified_ms = modified_ms
        cleaned.finish(self._transactions.take_index())
        self.counts.bytes_written += cleaned.segment.size

    @staticmethod
    def _copying(copy: PlainCopy, cleaned: CleanedSegment, last_end: int) -> Consume:
        """Copies plain batches but for the one that ends at `last_end`."""

        def consume(entries: memoryview, position: int) -> int:
            return cleaned.add_plain(copy, entries, spares_last=position + len(entries) == last_end)

        return consume

    def _kept_or_unreadable(self, entry: memoryview, keeps_legacy: bool) -> Buffer | None:
        """Return the kept part of an entry, all of it where its records cannot be read."""
        try:
            return self._kept(entry, keeps_legacy)
        except UNREADABLE as error:
            self._note_unreadable(entry, error)
            return entry

    def _kept(self, entry: memoryview, keeps_legacy: bool) -> Buffer | None:
        """Return the kept part of an entry, None if it is dropped."""
        if magic_at(entry) != 2:
            return kept_of_legacy(entry, self.keys, keeps_legacy, MAX_OPENED_BYTES)
        header = validated(entry)
        is_empty, marked = self._is_dropped(header, entry)
        kept = None
        if not is_empty and (header.record_count or marked or len(entry) > BATCH_HEADER_SIZE):
            kept = self._retained(header, entry, marked)
        if kept is None and self._is_last_of_producer(header):
            kept = emptied(entry)
        return kept

    def _retained(self, header: BatchHeader, entry: memoryview, marked: bool) -> Buffer | None:
        if header.is_control and not marked:
            return entry
        return retained(
            entry,
            self.keys,
            self._facts.now_ms,
            self._facts.now_ms + self._facts.delete_retention_ms,
            marked=marked,
            max_decompressed_bytes=MAX_OPENED_BYTES,
        )

    def _is_dropped(self, header: BatchHeader, entry: memoryview) -> tuple[bool, bool]:
        """Whether all records of a batch are dropped, and whether it is a marker that will be later."""
        if not header.is_control:
            return self._transactions.is_aborted(header), False
        if not self._transactions.is_empty_at(header, entry):
            return False, False
        is_over = header.has_delete_horizon and header.base_timestamp <= self._facts.now_ms
        return is_over or not header.record_count, not is_over

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether a producer's state would be lost with this batch."""
        last = self._facts.last_batches.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.last_offset is None:
            return header.is_control and header.producer_epoch == last.epoch
        return header.last_offset == last.last_offset

    # ---- reading

    def _entries(self, segment: Segment, consume: Consume) -> Iterator[tuple[int, memoryview]]:
        """The entries that `consume` does not take."""

        def read(position: int, size: int) -> bytes:
            self._pace.take(size)
            self.counts.bytes_read += size
            return segment.file.pread(size, position)

        try:
            yield from iter_unconsumed(read, 0, segment.size, consume, chunk_bytes=self._facts.io_bytes)
        finally:
            segment.close()


def _last_offset(entry: memoryview) -> int:
    if magic_at(entry) == 2:
        return read_header(entry).last_offset
    return legacy.read_entry(entry, check_crc=False).offset


class _Located:
    """Adds the position of an entry to an error about it."""

    __slots__ = ("_position",)

    def __init__(self, position: int) -> None:
        self._position = position

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KafkaError):
            raise CorruptStorage(f"{error} (at byte {self._position})", self._position) from None
