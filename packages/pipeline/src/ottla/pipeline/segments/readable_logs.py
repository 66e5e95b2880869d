"""What the files under the paths of a query hold: partitions, and where they begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.log_directories import PartitionFolder, Segment, find
from ottla.pipeline.segments.segment_files import end_of, opened
from ottla.pipeline.segments.transaction_outcomes import Outcome, outcome
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import Offsets
from ottla.protocol.topics import TopicPartition

_EVERYTHING = 2**63 - 1

Found = dict[TopicPartition, int | None]
"""Offsets by partition; None where no record is late enough."""


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """What may be read of a partition: segments, from an offset up to, not including, another."""

    segments: tuple[Segment, ...]
    start: int
    end: int
    transactions: Outcome
    why: str = ""
    """Why it ends there, where the topic goes on."""

    def at(self, edge: Edge) -> int:
        """Return an end of it."""
        return self.start if edge is Edge.EARLIEST else self.end


class ReadableLogs:
    """Answers from files what else brokers are asked. Everything in it is as it was when it was made."""

    def __init__(self, config: SegmentsConfig) -> None:
        found = find(config.paths, config.wanted)
        self._logs = {partition: _readable_log(folder, config) for partition, folder in found.items()}

    def __getitem__(self, partition: TopicPartition) -> ReadableLog:
        return self._logs[partition]

    def partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions to read that there are."""
        return frozenset(self._logs)

    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return where partitions begin, or end."""
        return {each: self._logs[each].at(edge) for each in partitions}

    def by_time(self, times: Mapping[TopicPartition, int]) -> Found:
        """Return the first offsets at or after times in ms; None where no record is so late."""
        return {each: _first_at(self._logs[each], time) for each, time in times.items()}


def _readable_log(folder: PartitionFolder, config: SegmentsConfig) -> ReadableLog:
    segments, reason = folder.closed, ", where its closed segments end"
    if config.include_active and folder.chooses(folder.active):
        segments, reason = (*segments, end_of(folder.active)), ""
    if not segments:
        nothing = folder.active.base_offset
        return ReadableLog((), nothing, nothing, Outcome(nothing, ()), reason)
    start = max(segments[0].base_offset, folder.log_start)
    end = segments[-1].end_offset or 0
    mark = folder.high_watermark
    if mark is not None and mark < end:
        end, reason = mark, ", up to where its broker has noted that it is replicated"
    known = outcome(folder, _limit(mark)) if config.reads_committed else Outcome(end, ())
    if known.last_stable < end:
        end, reason = known.last_stable, ", where a transaction is still open"
    return ReadableLog(segments, start, max(start, end), known, reason)


def _limit(mark: int | None) -> int:
    """Return up to where transactions count: one that ended in front of it has ended."""
    return _EVERYTHING if mark is None else mark


def _first_at(readable: ReadableLog, time_ms: int) -> int | None:
    for segment in readable.segments:
        if (segment.end_offset or 0) <= readable.start:
            continue
        with opened(segment) as reader:
            found = reader.first_at(time_ms, readable.start)
        if found is not None:
            return found if found < readable.end else None
    return None
