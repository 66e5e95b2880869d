"""What is read of each partition: options and filters, held against what there is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from ottla.pipeline.errors import DataLoss, OptionError
from ottla.pipeline.segments.archive import Archive, Found
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.source.bounds import Bound, Edge
from ottla.pipeline.source.offsets import Offsets, written
from ottla.pipeline.source.pushdown import Narrowed
from ottla.pipeline.source.ranges import OffsetRange, ranges_between
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


def plan(archive: Archive, config: SegmentsConfig, narrowed: Narrowed) -> list[OffsetRange]:
    """Return what is to be read of each partition. Raises OptionError, and DataLoss for what is not there."""
    every = archive.partitions()
    # Offsets are asked of all partitions and not of those alone that filters keep: options have to name all.
    start = _not_before(archive, config, _first_offsets(archive, config, every))
    end = _not_behind(archive, config, _last_offsets(archive, config.ending, every))
    _refuse_backwards(config, start, end)
    kept = frozenset(each for each in every if narrowed.keeps(each))
    ranges = [narrowed.narrow(each) for each in ranges_between(start, end) if each.partition in kept]
    return _since(archive, narrowed.since_ms, [each for each in ranges if len(each)])


def _first_offsets(archive: Archive, config: SegmentsConfig, partitions: Iterable[TopicPartition]) -> Offsets:
    found = _resolve(archive, config.starting, partitions)
    without = [each for each, offset in found.items() if offset is None]
    if without and config.when_no_offset == "error":
        raise OptionError(
            f"option {config.starting.option!r}: {written(without)} has no record at or after that time in "
            "what may be read of it; option startingOffsetsByTimestampStrategy=latest begins behind its last "
            "record then"
        )
    return _or_end(archive, found)


def _last_offsets(archive: Archive, ending: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
    return _or_end(archive, _resolve(archive, ending, partitions))


def _resolve(archive: Archive, bound: Bound, partitions: Iterable[TopicPartition]) -> Found:
    """Return the offsets that a bound stands for; None where no record is late enough."""
    needed = bound.needs(partitions)
    found: Found = dict(bound.known())
    for edge in Edge:
        found |= archive.offsets(edge, [each for each, wanted in needed.items() if wanted is edge])
    times = {each: wanted for each, wanted in needed.items() if not isinstance(wanted, Edge)}
    return found | archive.by_time(times)


def _or_end(archive: Archive, found: Mapping[TopicPartition, int | None]) -> Offsets:
    return {each: archive[each].end if offset is None else offset for each, offset in found.items()}


def _not_before(archive: Archive, config: SegmentsConfig, start: Offsets) -> Offsets:
    for partition, offset in sorted(start.items()):
        first = archive[partition].start
        if offset < first:
            _lost(config, f"{partition} begins at {first}, and is to be read from {offset}")
    return {each: max(offset, archive[each].start) for each, offset in start.items()}


def _not_behind(archive: Archive, config: SegmentsConfig, end: Offsets) -> Offsets:
    for partition, offset in sorted(end.items()):
        volume = archive[partition]
        if offset > volume.end:
            _lost(config, f"{partition} can be read up to {volume.end}{volume.why}, not up to {offset}")
    return {each: min(offset, archive[each].end) for each, offset in end.items()}


def _lost(config: SegmentsConfig, what: str) -> None:
    if config.fail_on_data_loss:
        raise DataLoss(what)
    log.warning("%s; failOnDataLoss is false: going on", what)


def _refuse_backwards(config: SegmentsConfig, start: Offsets, end: Offsets) -> None:
    for partition in sorted(end):
        if start[partition] > end[partition]:
            raise OptionError(
                f"{partition} is to be read from {start[partition]} (option {config.starting.option!r}), "
                f"which is behind its end {end[partition]} (option {config.ending.option!r})"
            )


def _since(archive: Archive, since_ms: int | None, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Leave out what comes before the first record that is late enough."""
    if since_ms is None or not ranges:
        return ranges
    found = archive.by_time({each.partition: since_ms for each in ranges})
    late = ((each, found[each.partition]) for each in ranges)
    return [
        OffsetRange(each.partition, max(each.start, first), each.end)
        for each, first in late
        if first is not None and first < each.end
    ]
