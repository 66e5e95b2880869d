"""Byte ranges of segments, and how tasks share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ottla.pipeline.segments.log_directories import Segment
from ottla.pipeline.segments.readable_logs import ReadableLog
from ottla.pipeline.segments.segment_files import open_segment
from ottla.pipeline.segments.transaction_outcomes import Aborted
from ottla.pipeline.source.offsets import OffsetRange
from ottla.protocol.topics import TopicPartition

WORTH_A_TASK = 16 * 1024 * 1024
"""Small segments are packed into tasks of this many bytes; a task of its own would take longer to start."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes of one segment from `begin` to `stop`, both at boundaries of batches.

    Of its records, those with offsets from `first` up to but excluding `end` are read.
    """

    partition: TopicPartition
    path: str
    begin: int
    stop: int
    first: int
    end: int
    file_size: int | None
    """The file size at planning time, if the file does not grow; another size means another file."""
    aborted: tuple[Aborted, ...] = ()

    def __len__(self) -> int:
        return self.stop - self.begin


def byte_ranges(readable: ReadableLog, wanted: OffsetRange) -> Iterator[tuple[ByteRange, Segment]]:
    """Yield the byte ranges that hold an offset range, one for each segment."""
    for segment in readable.segments:
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, segment.end_offset or 0)
        if start < end and segment.size:
            yield _byte_range(segment, OffsetRange(wanted.partition, start, end), readable), segment


def _byte_range(segment: Segment, wanted: OffsetRange, readable: ReadableLog) -> ByteRange:
    with open_segment(segment) as reader:
        begin = reader.position_of(wanted.start) if wanted.start > segment.base_offset else 0
        stop = reader.position_behind(wanted.end) if wanted.end < (segment.end_offset or 0) else segment.size
    return ByteRange(
        wanted.partition, str(segment.path()), begin, stop, wanted.start, wanted.end,
        None if segment.grows else segment.size,
        readable.transactions.aborted_between(segment.base_offset, segment.end_offset or 0),
    )  # fmt: skip


def split_range(whole: ByteRange, segment: Segment, most: int) -> list[ByteRange]:
    """Split a byte range evenly between batches, into pieces of not much more than `most` bytes."""
    count = -(-len(whole) // most)
    wanted = [whole.begin + len(whole) * index // count for index in range(1, count)]
    if not wanted:
        return [whole]
    with open_segment(segment) as reader:
        boundaries = [
            boundary for boundary in reader.boundaries(wanted) if whole.begin < boundary < whole.stop
        ]
    edges = [whole.begin, *dict.fromkeys(boundaries), whole.stop]
    return [replace(whole, begin=begin, stop=stop) for begin, stop in pairwise(edges)]


def pack_tasks(pieces: Iterable[ByteRange], most: int) -> list[tuple[ByteRange, ...]]:
    """Pack small pieces into tasks of up to `most` bytes, in order. Pure."""
    tasks: list[tuple[ByteRange, ...]] = []
    size = most
    for piece in pieces:
        size += len(piece)
        if tasks and size <= most:
            tasks[-1] = (*tasks[-1], piece)
        else:
            tasks.append((piece,))
            size = len(piece)
    return tasks


def max_task_bytes(total: int, most: int, least_tasks: int | None) -> int:
    """Return the maximum bytes of a task, at most `most`, that gives about `least_tasks` tasks. Pure."""
    return most if least_tasks is None else max(1, min(most, -(-total // least_tasks)))
