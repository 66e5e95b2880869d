"""A partition directory written batch by batch as a broker does, with the records that a reader must find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ottla.protocol.records import BatchBuilder, Codec, ControlType, end_transaction_marker
from ottla.protocol.storage.checkpoints import encode_offset_checkpoint
from ottla.protocol.storage.indexes import (
    AbortedTransaction,
    OffsetEntry,
    ProducerEntry,
    TimeEntry,
    encode_aborted_transaction,
    encode_offset_entry,
    encode_producer_snapshot,
    encode_time_entry,
)
from ottla.protocol.storage.segments import SegmentFile, directory_name, file_name
from ottla.protocol.topics import TopicPartition

FIRST_MS = 1_700_000_000_000
ORDERS = TopicPartition("orders", 0)

_NONE_YET = TimeEntry(-1, 0)


@dataclass
class Written:
    """A record in the log."""

    offset: int
    timestamp_ms: int
    value: bytes
    producer_id: int = -1
    is_aborted: bool = False


@dataclass
class PartitionWriter:
    """Writes a partition; the offset index has an entry for every `index_interval` batches."""

    log_dir: Path
    partition: TopicPartition = ORDERS
    index_interval: int = 1
    written: list[Written] = field(default_factory=list)
    next_offset: int = 0
    base_offset: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """The first offset of each producer's open transaction."""
    _batches: int = 0
    _latest: TimeEntry = _NONE_YET

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.base_offset = self.next_offset
        self._begin()

    @property
    def folder(self) -> Path:
        return self.log_dir / directory_name(self.partition)

    def path(self, kind: SegmentFile = SegmentFile.LOG, base_offset: int | None = None) -> Path:
        """Return a file of a segment; of the active one by default."""
        return self.folder / file_name(self.base_offset if base_offset is None else base_offset, kind)

    def batch(
        self,
        values: Sequence[bytes],
        timestamp_ms: int | None = None,
        *,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
    ) -> None:
        """Append records; with a producer id they are part of its transaction."""
        begin = FIRST_MS + self.next_offset if timestamp_ms is None else timestamp_ms
        builder = BatchBuilder(1 << 30, codec=codec)
        for index, value in enumerate(values):
            builder.append(b"key", value, begin + index, [("from", b"test")])
            self.written.append(Written(self.next_offset + index, begin + index, value, producer_id))
        if producer_id >= 0:
            self.open.setdefault(producer_id, self.next_offset)
        data = builder.build(
            base_offset=self.next_offset, producer_id=producer_id, transactional=producer_id >= 0,
            producer_epoch=0 if producer_id >= 0 else -1, base_sequence=0 if producer_id >= 0 else -1,
        )  # fmt: skip
        last = self.next_offset + len(values) - 1
        if begin + len(values) - 1 > self._latest.timestamp_ms:
            self._latest = TimeEntry(begin + len(values) - 1, last)
        self._append(data, last)

    def end_transaction(self, producer_id: int, kind: ControlType) -> None:
        """Append the end marker of a transaction; an aborted one is added to the index."""
        begun = self.open.pop(producer_id, None)
        at = self.next_offset
        marker = end_transaction_marker(
            kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, base_offset=at,
            timestamp_ms=FIRST_MS + at,
        )  # fmt: skip
        self._append(marker, at)
        if kind is ControlType.ABORT and begun is not None:
            self._add(
                SegmentFile.TRANSACTION_INDEX,
                encode_aborted_transaction(AbortedTransaction(producer_id, begun, at, at)),
            )
            for each in self.written:
                each.is_aborted |= each.producer_id == producer_id and each.offset >= begun

    def roll(self) -> None:
        """Close the segment and start the next."""
        self._add(SegmentFile.TIME_INDEX, encode_time_entry(self._latest, self.base_offset))
        self.base_offset = self.next_offset
        self._begin()
        states = [ProducerEntry(*(who, 0, 0, 0, 0, 0, 0), begun) for who, begun in self.open.items()]
        self.path(SegmentFile.PRODUCER_SNAPSHOT).write_bytes(encode_producer_snapshot(states))

    def checkpoint(self, name: str, offset: int) -> None:
        """Write an offset of the partition to a checkpoint file, as brokers do."""
        (self.log_dir / name).write_bytes(encode_offset_checkpoint({self.partition: offset}))

    def visible(self, start: int = 0, end: int | None = None, *, committed: bool = False) -> list[Written]:
        """Return the records that a reader finds between two offsets; by default in all closed segments."""
        until = self.base_offset if end is None else end
        if committed:
            until = min([until, *self.open.values()])
        within = [each for each in self.written if start <= each.offset < until]
        return [each for each in within if not (committed and each.is_aborted)]

    def _begin(self) -> None:
        self._latest = TimeEntry(-1, self.base_offset)
        self._batches = 0
        for kind in (SegmentFile.LOG, SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX):
            self.path(kind).touch()

    def _append(self, data: bytes, last_offset: int) -> None:
        position = self.path().stat().st_size
        if self._batches and self._batches % self.index_interval == 0:
            entry = OffsetEntry(last_offset, position)
            self._add(SegmentFile.OFFSET_INDEX, encode_offset_entry(entry, self.base_offset))
            self._add(SegmentFile.TIME_INDEX, encode_time_entry(self._latest, self.base_offset))
        self._add(SegmentFile.LOG, data)
        self._batches += 1
        self.next_offset = last_offset + 1

    def _add(self, kind: SegmentFile, data: bytes) -> None:
        with self.path(kind).open("ab") as file:
            file.write(data)
