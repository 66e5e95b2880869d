"""The readable part of each log under the paths of a query, and the byte ranges that tasks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ottla.pipeline.errors import DataLoss, report_loss
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.log_directories import PartitionFolder, Segment, find_partitions
from ottla.pipeline.segments.segment_files import open_segment, snapshot_of_active
from ottla.pipeline.segments.transaction_outcomes import Aborted, Outcome, outcome
from ottla.pipeline.source.offset_bounds import Edge, OffsetLookup, ranges_of
from ottla.pipeline.source.offsets import OffsetRange, Offsets
from ottla.protocol.topics import TopicPartition

_EVERYTHING = 2**63 - 1

WORTH_A_TASK = 16 * 1024 * 1024
"""Small segments are packed into tasks of this many bytes; a task of its own would take longer to start."""


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The readable part of a partition: segments, and offsets from `start` up to but excluding `end`."""

    segments: tuple[Segment, ...]
    start: int
    end: int
    transactions: Outcome
    why: str = ""
    """The reason for an end before the end of the log, for messages."""

    def at(self, edge: Edge) -> int:
        """Return the start or the end offset."""
        return self.start if edge is Edge.EARLIEST else self.end


class ReadableLogs(OffsetLookup):
    """Looks up offsets in files, in the state of its creation."""

    def __init__(self, config: SegmentsConfig) -> None:
        found = find_partitions(config.paths, config.wanted)
        self._logs = {partition: _readable_log(folder, config) for partition, folder in found.items()}

    def __getitem__(self, partition: TopicPartition) -> ReadableLog:
        return self._logs[partition]

    def partitions(self) -> frozenset[TopicPartition]:
        """Return the existing partitions to read."""
        return frozenset(self._logs)

    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return start or end offsets."""
        return {partition: self._logs[partition].at(edge) for partition in partitions}

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp in ms; None if no record is late enough."""
        return {partition: _first_at(self._logs[partition], time) for partition, time in times.items()}


def _readable_log(folder: PartitionFolder, config: SegmentsConfig) -> ReadableLog:
    segments, reason = folder.closed, ", where its closed segments end"
    if config.include_active and folder.chooses(folder.active):
        segments, reason = (*segments, snapshot_of_active(folder.active)), ""
    if not segments:
        nothing = folder.active.base_offset
        return ReadableLog((), nothing, nothing, Outcome(nothing, ()), reason)
    start = max(segments[0].base_offset, folder.log_start)
    end = segments[-1].end_offset or 0
    mark = folder.high_watermark
    if mark is not None and mark < end:
        end, reason = mark, ", its checkpointed high watermark"
    known = outcome(folder, _limit(mark)) if config.reads_committed else Outcome(end, ())
    if known.last_stable < end:
        end, reason = known.last_stable, ", where a transaction is still open"
    return ReadableLog(segments, start, max(start, end), known, reason)


def _limit(mark: int | None) -> int:
    """Return the offset before which a transaction's end marker counts."""
    return _EVERYTHING if mark is None else mark


def _first_at(readable: ReadableLog, time_ms: int) -> int | None:
    for segment in readable.segments:
        if (segment.end_offset or 0) <= readable.start:
            continue
        with open_segment(segment) as reader:
            found = reader.first_at(time_ms, readable.start)
        if found is not None:
            return found if found < readable.end else None
    return None


def plan(logs: ReadableLogs, config: SegmentsConfig) -> list[OffsetRange]:
    """Return the offset ranges to read. Raises OptionError, and DataLoss for missing offsets."""
    every = logs.partitions()
    start = _not_before(logs, config, logs.first_offsets(config.starting, every, config.when_no_offset))
    end = _not_behind(logs, config, logs.last_offsets(config.ending, every))
    return ranges_of(config.starting, config.ending, start, end)


def _not_before(logs: ReadableLogs, config: SegmentsConfig, start: Offsets) -> Offsets:
    for partition, offset in sorted(start.items()):
        first = logs[partition].start
        if offset < first:
            _lost(config, f"{partition} begins at {first}, and should be read from {offset}")
    return {partition: max(offset, logs[partition].start) for partition, offset in start.items()}


def _not_behind(logs: ReadableLogs, config: SegmentsConfig, end: Offsets) -> Offsets:
    for partition, offset in sorted(end.items()):
        readable = logs[partition]
        if offset > readable.end:
            _lost(config, f"{partition} can be read up to {readable.end}{readable.why}, not up to {offset}")
    return {partition: min(offset, logs[partition].end) for partition, offset in end.items()}


def _lost(config: SegmentsConfig, what: str) -> None:
    report_loss(DataLoss(what), fails=config.fail_on_data_loss)


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
