"""The transactions of a partition: which are open, and which were aborted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.pipeline.errors import CorruptSegment
from ottla.pipeline.segments.log_directories import PartitionFolder
from ottla.pipeline.segments.segment_files import Entry, SegmentReader, open_segment, snapshot_of_active
from ottla.protocol.records import BatchHeader, ControlType, read_end_transaction_marker
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.indexes import decode_aborted_transactions, decode_producer_snapshot
from ottla.protocol.storage.segments import SegmentFile, parse_file_name


class Aborted(NamedTuple):
    """An aborted transaction, whose records are skipped; its abort marker is at `last_offset`."""

    first_offset: int
    last_offset: int
    producer_id: int


@dataclass(slots=True)
class TransactionTracker:
    """Tracks transactions through a log, batch by batch. Pure."""

    open: dict[int, int] = field(default_factory=dict)
    """The first offset of each producer's open transaction."""
    aborted: list[Aborted] = field(default_factory=list)

    def records(self, header: BatchHeader) -> None:
        """Apply a batch of records."""
        if header.is_transactional:
            self.open.setdefault(header.producer_id, header.base_offset)

    def marker(self, header: BatchHeader, kind: ControlType) -> None:
        """Apply the end marker of a transaction."""
        first = self.open.pop(header.producer_id, None)
        if kind is ControlType.ABORT and first is not None:
            self.aborted.append(Aborted(first, header.last_offset, header.producer_id))

    def last_stable(self, end: int) -> int:
        """Return the last stable offset, at most `end`."""
        return min(self.open.values(), default=end)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last stable offset and the aborted transactions, for a reader of committed records."""

    last_stable: int
    aborted: tuple[Aborted, ...]

    def aborted_between(self, start: int, end: int) -> tuple[Aborted, ...]:
        """Return the aborted transactions that have records between two offsets."""
        return tuple(
            transaction
            for transaction in self.aborted
            if transaction.first_offset < end and transaction.last_offset >= start
        )


def outcome(of: PartitionFolder, end: int) -> Outcome:
    """Return the outcomes of transactions below an offset. Raises CorruptSegment.

    The broker stores them beside the log, in producer snapshots and transaction indexes. If a log was copied
    without these files, all of it is scanned.
    """
    if not all(segment.path(SegmentFile.OFFSET_INDEX).exists() for segment in of.every[:-1]):
        tracker = _walked(of, TransactionTracker(), of.every[0].base_offset, end)
        return Outcome(tracker.last_stable(end), tuple(tracker.aborted))
    since, known = _snapshot(of, end)
    tracker = _walked(of, TransactionTracker(known), since, end)
    return Outcome(tracker.last_stable(end), tuple(_indexed(of)))


def _snapshot(of: PartitionFolder, end: int) -> tuple[int, dict[int, int]]:
    """Return the newest offset with a producer snapshot, and the transactions that are open there."""
    names = (parse_file_name(file.name) for file in of.folder.iterdir())
    offsets = [
        name.base_offset
        for name in names
        if name is not None and name.kind is SegmentFile.PRODUCER_SNAPSHOT and not name.suffix
    ]
    for offset in sorted((known for known in offsets if known <= end), reverse=True):
        with suppress(CorruptStorage, FileNotFoundError):
            entries = decode_producer_snapshot(
                (of.folder / f"{offset:020d}{SegmentFile.PRODUCER_SNAPSHOT}").read_bytes()
            )
            begun = {entry.producer_id: entry.current_transaction_first_offset for entry in entries}
            return offset, {producer: first for producer, first in begun.items() if first >= 0}
    return of.every[0].base_offset, {}


def _walked(of: PartitionFolder, tracker: TransactionTracker, since: int, end: int) -> TransactionTracker:
    for segment in (*of.every[:-1], snapshot_of_active(of.active)):
        if segment.base_offset < end and (segment.end_offset or 0) > since:
            with open_segment(segment) as reader:
                _follow(tracker, reader, since, end)
    return tracker


def _follow(tracker: TransactionTracker, reader: SegmentReader, since: int, end: int) -> None:
    for entry in reader.entries(reader.position_of(since) if since > reader.segment.base_offset else 0):
        if entry.header is not None and since <= entry.header.base_offset < end:
            _take_in(tracker, reader, entry, entry.header)


def _take_in(tracker: TransactionTracker, reader: SegmentReader, entry: Entry, header: BatchHeader) -> None:
    if not header.is_control:
        tracker.records(header)
        return
    marker = read_end_transaction_marker(reader.bytes_of(entry))
    if marker is not None:
        tracker.marker(header, marker.type)


def _indexed(of: PartitionFolder) -> Iterator[Aborted]:
    """Yield the entries of transaction indexes.

    That of the active segment counts, since a transaction may end there.
    """
    for segment in of.every:
        path = segment.path(SegmentFile.TRANSACTION_INDEX)
        if not path.exists():
            continue
        try:
            for transaction in decode_aborted_transactions(path.read_bytes()):
                yield Aborted(transaction.first_offset, transaction.last_offset, transaction.producer_id)
        except CorruptStorage as error:
            raise CorruptSegment(str(path), error) from error
