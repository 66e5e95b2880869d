"""What a task does: bytes of segments, as rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import TYPE_CHECKING, NamedTuple

from ottla.pipeline.errors import DataLoss
from ottla.pipeline.segments.byte_ranges import ByteRange
from ottla.pipeline.segments.errors import CorruptSegment, SegmentsChanged
from ottla.pipeline.source.spark_rows import Rows
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import CorruptRecords, split_batches
from ottla.protocol.records.arrow import ColumnBuilder
from ottla.protocol.storage.segments import DELETED_SUFFIX

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 1024 * 1024
"""How much is read of a file at once."""

BATCH_BYTES = 4 * 1024 * 1024
"""About how many bytes of a segment become one batch of rows."""

_UNFOLDING = 8
"""How much larger compressed records are taken to be, so that a batch of rows stays handy."""

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
            yield from ByteRangeReader(byte_range, file, rows).batches()


def _open(byte_range: ByteRange) -> FileIO:
    """Open a segment, also one that the broker is about to remove. Raises FileNotFoundError."""
    try:
        file = FileIO(byte_range.path)
    except FileNotFoundError:
        file = FileIO(byte_range.path + DELETED_SUFFIX)
    size = os.fstat(file.fileno()).st_size
    if size < byte_range.stop or (byte_range.file_size is not None and size != byte_range.file_size):
        file.close()
        raise SegmentsChanged(
            f"{byte_range.path} has {size} bytes, and had others when the query was planned"
        )
    return file


def _lost(byte_range: ByteRange, *, fail_on_data_loss: bool) -> None:
    what = f"{byte_range.path}, with offsets from {byte_range.first} of {byte_range.partition}, is gone"
    if fail_on_data_loss:
        raise DataLoss(what)
    log.warning("%s; failOnDataLoss is false: going on", what)


class ByteRangeReader:
    """Reads one span, chunk by chunk."""

    def __init__(self, byte_range: ByteRange, file: FileIO, rows: Rows) -> None:
        self._byte_range = byte_range
        self._file = file
        self._rows = rows
        self._builder = ColumnBuilder(rows.columns)
        self._buffer = memoryview(bytearray(max(_LEAST_READ, min(CHUNK_BYTES, len(byte_range)))))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        position = self._byte_range.begin
        while position < self._byte_range.stop:
            chunk = self._fill(position)
            taken = 0
            for group in self._groups(chunk, position):
                yield from self._decoded(group, chunk, position + group.start)
                taken = group.stop
            if not taken:
                self._enlarge(chunk, position)
            position += taken

    def _fill(self, position: int) -> memoryview:
        """Return bytes of the segment; they stay until the next call."""
        wanted = self._buffer[: min(len(self._buffer), self._byte_range.stop - position)]
        self._file.seek(position)
        return wanted[: self._file.readinto(wanted)]

    def _groups(self, chunk: memoryview, position: int) -> Iterator[Group]:
        try:
            yield from groups(chunk, BATCH_BYTES)
        except CorruptRecords as error:
            raise CorruptSegment(self._byte_range.path, f"{error}, behind byte {position}") from error

    def _enlarge(self, chunk: memoryview, position: int) -> None:
        """Make room for a batch that is larger than what is read at once."""
        size = int.from_bytes(chunk[8:12], "big", signed=True) + 12 if len(chunk) >= 12 else 0
        if not len(chunk) < size <= self._byte_range.stop - position:
            raise CorruptSegment(self._byte_range.path, f"the batch at byte {position} is cut off")
        self._buffer = memoryview(bytearray(size))

    def _decoded(self, group: Group, chunk: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        byte_range = self._byte_range
        if group.first >= byte_range.end or group.end <= byte_range.first:
            return
        aborted = [
            (each.first_offset, each.producer_id)
            # One that has ended before must not count again for what its producer wrote later.
            for each in byte_range.aborted
            if each.first_offset < group.end and each.last_offset >= group.first
        ]
        following = byte_range.first
        while following < group.end:  # once, but where columns are full: those of 2 GiB
            following = self._add(chunk[group.start : group.stop], following, aborted, position)
            rows = _below(pa.record_batch(self._builder.finish()), byte_range.end)
            if rows.num_rows:
                yield self._rows.of(rows, byte_range.partition)

    def _add(self, data: memoryview, since: int, aborted: list[tuple[int, int]], position: int) -> int:
        partition = self._byte_range.partition
        try:
            return self._builder.add(partition.topic, partition.partition, data, since, aborted)
        except KafkaError as error:
            raise CorruptSegment(self._byte_range.path, f"{error}, at or behind byte {position}") from error


class Group(NamedTuple):
    """Whole batches in a row: their bytes in a chunk, and the offsets that they may have."""

    start: int
    stop: int
    first: int
    end: int


def groups(chunk: memoryview, most: int) -> Iterator[Group]:
    """Yield batches in groups of about `most` bytes once unfolded. Pure.

    What is cut off at the end is in no group. Raises CorruptRecords.
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
    # Before there were batches, the offset of an entry was that of the last message inside it.
    first = _number(chunk, start, 8) if chunk[start + 16] == 2 else -1
    delta = _number(chunk, last + 23, 4) if chunk[last + 16] == 2 else 0
    return Group(start, stop, first, _number(chunk, last, 8) + delta + 1)


def _number(chunk: memoryview, position: int, size: int) -> int:
    return int.from_bytes(chunk[position : position + size], "big")


def _below(batch: pa.RecordBatch, end: int) -> pa.RecordBatch:
    """Return the part of a batch whose offsets are below `end`, without a copy."""
    import numpy

    offsets = batch.column("offset").to_numpy()
    if not len(offsets) or offsets[-1] < end:
        return batch
    return batch.slice(0, int(numpy.searchsorted(offsets, end)))
