"""Which task reads which bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ottla.pipeline.segments.log_directories import Segment
from ottla.pipeline.segments.readable_logs import ReadableLog
from ottla.pipeline.segments.segment_files import opened
from ottla.pipeline.segments.transaction_outcomes import Aborted
from ottla.pipeline.source.offset_ranges import OffsetRange
from ottla.protocol.topics import TopicPartition

WORTH_A_TASK = 16 * 1024 * 1024
"""So many bytes of small segments go into one task: a task of their own would take longer to start."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of one segment, from a batch that begins at `begin` up to where another ends, `stop`.

    Records from offset `first` up to, not including, `end` are wanted of it.
    """

    partition: TopicPartition
    path: str
    begin: int
    stop: int
    first: int
    end: int
    file_size: int | None
    """What the file had when this was planned, if it does not grow: another file has another."""
    aborted: tuple[Aborted, ...] = ()

    def __len__(self) -> int:
        return self.stop - self.begin


def byte_ranges(readable: ReadableLog, wanted: OffsetRange) -> Iterator[tuple[ByteRange, Segment]]:
    """Yield what holds a range: a span of each segment."""
    for segment in readable.segments:
        start, end = max(wanted.start, segment.base_offset), min(wanted.end, segment.end_offset or 0)
        if start < end and segment.size:
            yield _byte_range(segment, OffsetRange(wanted.partition, start, end), readable), segment


def _byte_range(segment: Segment, wanted: OffsetRange, readable: ReadableLog) -> ByteRange:
    with opened(segment) as reader:
        begin = reader.position_of(wanted.start) if wanted.start > segment.base_offset else 0
        stop = reader.position_behind(wanted.end) if wanted.end < (segment.end_offset or 0) else segment.size
    return ByteRange(
        wanted.partition, str(segment.path()), begin, stop, wanted.start, wanted.end,
        None if segment.grows else segment.size,
        readable.transactions.aborted_between(segment.base_offset, segment.end_offset or 0),
    )  # fmt: skip


def cut(whole: ByteRange, segment: Segment, most: int) -> list[ByteRange]:
    """Return a span in pieces of about the same size, none much above `most` bytes, cut between batches."""
    count = -(-len(whole) // most)
    wanted = [whole.begin + len(whole) * index // count for index in range(1, count)]
    if not wanted:
        return [whole]
    with opened(segment) as reader:
        lookup = [each for each in reader.boundaries(wanted) if whole.begin < each < whole.stop]
    edges = [whole.begin, *dict.fromkeys(lookup), whole.stop]
    return [replace(whole, begin=one, stop=other) for one, other in pairwise(edges)]


def packed(pieces: Iterable[ByteRange], most: int) -> list[tuple[ByteRange, ...]]:
    """Put small pieces together, in their order, up to `most` bytes in a task. Pure."""
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


def most_in_task(total: int, most: int, least_tasks: int | None) -> int:
    """Return the most bytes of a task, at most `most`, so that there are about `least_tasks`. Pure."""
    return most if least_tasks is None else max(1, min(most, -(-total // least_tasks)))
