"""Tasks of the segment source: each reads byte ranges of segments as rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import NamedTuple

from ottla.pipeline.errors import CorruptSegment, DataLoss, SegmentsChanged, UnreadableBatch, report_loss
from ottla.pipeline.lazy import pa
from ottla.pipeline.segments.readable_logs import ByteRange
from ottla.pipeline.source.spark_rows import Rows
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import CorruptRecords, split_batches
from ottla.protocol.records.arrow import ColumnBuilder
from ottla.protocol.storage.segments import DELETED_SUFFIX

CHUNK_BYTES = 8 * 1024 * 1024
"""The bytes that are read from a file at once."""

BATCH_BYTES = 4 * 1024 * 1024
"""The approximate bytes of a segment in one batch of rows."""

_UNFOLDING = 8
"""The assumed ratio of compression, so that a batch of rows stays small."""

_LEAST_READ = 64


def read(
    byte_ranges: Iterable[ByteRange], rows: Rows, *, fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. Raises DataLoss, SegmentsChanged, CorruptSegment."""
    for byte_range in byte_ranges:
        try:
            file = _open(byte_range)
        except FileNotFoundError:
            _lost(byte_range, fail_on_data_loss=fail_on_data_loss)
            continue
        with file:
            reader = ByteRangeReader(byte_range, file, rows, fail_on_data_loss=fail_on_data_loss)
            yield from reader.batches()


def _open(byte_range: ByteRange) -> FileIO:
    """Open a segment, also one that the broker is about to delete. Raises FileNotFoundError."""
    try:
        file = FileIO(byte_range.path)
    except FileNotFoundError:
        file = FileIO(byte_range.path + DELETED_SUFFIX)
    size = os.fstat(file.fileno()).st_size
    if size < byte_range.stop or (byte_range.file_size is not None and size != byte_range.file_size):
        file.close()
        raise SegmentsChanged(
            f"{byte_range.path} has {size} bytes, and had another size when the query was planned"
        )
    return file


def _lost(byte_range: ByteRange, *, fail_on_data_loss: bool) -> None:
    what = f"{byte_range.path}, with offsets from {byte_range.first} of {byte_range.partition}, is lost"
    report_loss(DataLoss(what), fails=fail_on_data_loss)


class ByteRangeReader:
    """Reads one byte range, chunk by chunk."""

    def __init__(
        self, byte_range: ByteRange, file: FileIO, rows: Rows, *, fail_on_data_loss: bool = True
    ) -> None:
        self._byte_range = byte_range
        self._file = file
        self._rows = rows
        self._fail_on_data_loss = fail_on_data_loss
        self._builder = ColumnBuilder(rows.columns)
        self._buffer = memoryview(bytearray(max(_LEAST_READ, min(CHUNK_BYTES, len(byte_range)))))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        position = self._byte_range.begin
        while position < self._byte_range.stop:
            chunk = self._fill(position)
            taken = 0
            for group in self._groups(chunk, position):
                yield from self._decoded(group, chunk)
                taken = group.stop
            if not taken:
                self._enlarge(chunk, position)
            position += taken

    def _fill(self, position: int) -> memoryview:
        """Return bytes of the segment; they are valid until the next call."""
        wanted = self._buffer[: min(len(self._buffer), self._byte_range.stop - position)]
        self._file.seek(position)
        return wanted[: self._file.readinto(wanted)]

    def _groups(self, chunk: memoryview, position: int) -> Iterator[Group]:
        try:
            yield from groups(chunk, BATCH_BYTES)
        except CorruptRecords as error:
            raise CorruptSegment(self._byte_range.path, f"{error}, behind byte {position}") from error

    def _enlarge(self, chunk: memoryview, position: int) -> None:
        """Enlarge the buffer for a batch that is larger than a chunk."""
        size = int.from_bytes(chunk[8:12], "big", signed=True) + 12 if len(chunk) >= 12 else 0
        if not len(chunk) < size <= self._byte_range.stop - position:
            raise CorruptSegment(self._byte_range.path, f"the batch at byte {position} is truncated")
        self._buffer = memoryview(bytearray(size))

    def _decoded(self, group: Group, chunk: memoryview) -> Iterator[pa.RecordBatch]:
        byte_range = self._byte_range
        if group.first >= byte_range.end or group.end <= byte_range.first:
            return
        aborted = [
            (transaction.first_offset, transaction.producer_id)
            # A transaction that ended before must not hide later records of its producer.
            for transaction in byte_range.aborted
            if transaction.first_offset < group.end and transaction.last_offset >= group.first
        ]
        following, left = byte_range.first, chunk[group.start : group.stop]
        # One iteration, unless a column reaches 2 GiB or a batch cannot be read.
        while following < group.end and left:
            following, left = self._add(left, following, aborted)
            rows = _below(pa.record_batch(self._builder.finish()), byte_range.end)
            if rows.num_rows:
                yield self._rows.of(rows, byte_range.partition)

    def _add(self, data: memoryview, since: int, aborted: list[tuple[int, int]]) -> tuple[int, memoryview]:
        """Add the records from an offset on; return the offset and the data that follow.

        Raises UnreadableBatch, or leaves the rest of the first batch that cannot be read out.
        """
        partition = self._byte_range.partition
        try:
            return self._builder.add(partition.topic, partition.partition, data, since, aborted), data
        except KafkaError as error:
            base, following, size = _batch_at(data, since)
            loss = UnreadableBatch(self._byte_range.path, partition, max(since, base), error)
            report_loss(loss, fails=self._fail_on_data_loss)
            return following, data[size:]


def _batch_at(data: memoryview, offset: int) -> tuple[int, int, int]:
    """Return the base of the first batch that ends behind an offset, the offset behind it, and its end."""
    at = 0
    for entry in split_batches(data, torn_tail=True):
        group = _group(data, at, at, at + len(entry))
        at += len(entry)
        if group.end > offset:
            break
    return group.first, group.end, at


class Group(NamedTuple):
    """Adjacent whole batches: their bytes in a chunk, and the offsets that they may have."""

    start: int
    stop: int
    first: int
    end: int


def groups(chunk: memoryview, most: int) -> Iterator[Group]:
    """Yield groups of batches with about `most` decompressed bytes. Pure.

    A truncated batch at the end is in no group. Raises CorruptRecords.
    """
    start = last = at = weight = 0
    for entry in split_batches(chunk, torn_tail=True):
        last, at = at, at + len(entry)
        weight += len(entry) * _UNFOLDING if _is_compressed(entry) else len(entry)
        if weight >= most:
            yield _group(chunk, start, last, at)
            start, weight = at, 0
    if at > start:
        yield _group(chunk, start, last, at)


def _is_compressed(entry: memoryview) -> bool:
    attributes = entry[22] if entry[16] == 2 else entry[17]
    return bool(attributes & 7)


def _group(chunk: memoryview, start: int, last: int, stop: int) -> Group:
    """Return the group that ends with the entry at `last`."""
    # In formats 0 and 1, the offset of an entry is that of its last inner message.
    first = _number(chunk, start, 8) if chunk[start + 16] == 2 else -1
    delta = max(0, _number(chunk, last + 23, 4)) if chunk[last + 16] == 2 else 0
    return Group(start, stop, first, _number(chunk, last, 8) + delta + 1)


def _number(chunk: memoryview, position: int, size: int) -> int:
    return int.from_bytes(chunk[position : position + size], "big", signed=True)


def _below(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Return the part of a batch with offsets below `end`, without a copy."""
    import numpy

    offsets = batch.column("offset").to_numpy()
    if not len(offsets) or offsets[-1] < end:
        return batch
    return batch.slice(0, int(numpy.searchsorted(offsets, end)))
