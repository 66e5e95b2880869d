"""The offset ranges to read: the options, checked against the files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.pipeline.errors import DataLoss, OptionError, report_loss
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.readable_logs import Found, ReadableLogs
from ottla.pipeline.source.offset_bounds import Bound, Edge
from ottla.pipeline.source.offset_json import Offsets, partition_names
from ottla.pipeline.source.offset_ranges import OffsetRange, ranges_between
from ottla.protocol.topics import TopicPartition


def plan(logs: ReadableLogs, config: SegmentsConfig) -> list[OffsetRange]:
    """Return the offset ranges to read. Raises OptionError, and DataLoss for missing offsets."""
    every = logs.partitions()
    start = _not_before(logs, config, _first_offsets(logs, config, every))
    end = _not_behind(logs, config, _last_offsets(logs, config.ending, every))
    _refuse_backwards(config, start, end)
    return ranges_between(start, end)


def _first_offsets(
    logs: ReadableLogs, config: SegmentsConfig, partitions: Iterable[TopicPartition]
) -> Offsets:
    found = _resolve(logs, config.starting, partitions)
    without = [each for each, offset in found.items() if offset is None]
    if without and config.when_no_offset == "error":
        raise OptionError(
            f"option {config.starting.option!r}: {partition_names(without)} has no readable record at or "
            "after that time; with option startingOffsetsByTimestampStrategy=latest it starts at "
            "its end"
        )
    return _or_end(logs, found)


def _last_offsets(logs: ReadableLogs, ending: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
    return _or_end(logs, _resolve(logs, ending, partitions))


def _resolve(logs: ReadableLogs, bound: Bound, partitions: Iterable[TopicPartition]) -> Found:
    """Resolve a bound to offsets; None if no record is late enough."""
    needed = bound.needs(partitions)
    found: Found = dict(bound.known())
    for edge in Edge:
        found |= logs.offsets(edge, [each for each, wanted in needed.items() if wanted is edge])
    times = {each: wanted for each, wanted in needed.items() if not isinstance(wanted, Edge)}
    return found | logs.by_time(times)


def _or_end(logs: ReadableLogs, found: Mapping[TopicPartition, int | None]) -> Offsets:
    return {each: logs[each].end if offset is None else offset for each, offset in found.items()}


def _not_before(logs: ReadableLogs, config: SegmentsConfig, start: Offsets) -> Offsets:
    for partition, offset in sorted(start.items()):
        first = logs[partition].start
        if offset < first:
            _lost(config, f"{partition} begins at {first}, and should be read from {offset}")
    return {each: max(offset, logs[each].start) for each, offset in start.items()}


def _not_behind(logs: ReadableLogs, config: SegmentsConfig, end: Offsets) -> Offsets:
    for partition, offset in sorted(end.items()):
        readable = logs[partition]
        if offset > readable.end:
            _lost(config, f"{partition} can be read up to {readable.end}{readable.why}, not up to {offset}")
    return {each: min(offset, logs[each].end) for each, offset in end.items()}


def _lost(config: SegmentsConfig, what: str) -> None:
    report_loss(DataLoss(what), fails=config.fail_on_data_loss)


def _refuse_backwards(config: SegmentsConfig, start: Offsets, end: Offsets) -> None:
    for partition in sorted(end):
        if start[partition] > end[partition]:
            raise OptionError(
                f"{partition} should be read from {start[partition]} (option "
                f"{config.starting.option!r}), which is behind its end {end[partition]} (option "
                f"{config.ending.option!r})"
            )
