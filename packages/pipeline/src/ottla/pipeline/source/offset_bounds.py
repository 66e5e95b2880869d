"""The options for starting and ending offsets, and their resolution. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import option
from ottla.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    parse_offsets,
    partition_names,
    ranges_between,
)
from ottla.pipeline.values import RowOptions
from ottla.protocol.topics import TopicPartition

STARTING_OFFSETS = (
    'the start: `earliest`, `latest`, or offsets as JSON, `{"orders": {"0": 23, "1": -2}}`: `-2` is '
    "the first record of a partition, `-1` its end. Every partition has to be named"
)


class Edge(Enum):
    """The start or the end of a partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound of a read: an edge, or an offset or a timestamp (in ms) for each partition."""

    edge: Edge | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    times: Mapping[TopicPartition, int] | None = None
    time: int | None = None
    """One timestamp for all partitions."""
    option: str = field(default="", compare=False)

    def needs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Edge | int]:
        """Return the lookups that the bound needs, an edge or a timestamp each; explicit offsets need none.

        Raises OptionError if the option names other partitions than those that are read.
        """
        wanted = frozenset(partitions)
        if self.edge is not None:
            return dict.fromkeys(wanted, self.edge)
        if self.time is not None:
            return dict.fromkeys(wanted, self.time)
        given = self.offsets if self.offsets is not None else self.times or {}
        self._refuse_others(wanted, frozenset(given))
        if self.offsets is None:
            return dict(given)
        edges = {EARLIEST: Edge.EARLIEST, LATEST: Edge.LATEST}
        return {partition: edges[offset] for partition, offset in given.items() if offset in edges}

    def known(self) -> Offsets:
        """Return the explicit offsets."""
        return {partition: offset for partition, offset in (self.offsets or {}).items() if offset >= 0}

    def _refuse_others(self, wanted: frozenset[TopicPartition], given: frozenset[TopicPartition]) -> None:
        if missing := wanted - given:
            raise OptionError(
                f"option {self.option!r} must name all partitions, and lacks {partition_names(missing)}; "
                f"{EARLIEST} means the first record, {LATEST} the end"
            )
        if others := given - wanted:
            raise OptionError(
                f"option {self.option!r} names {partition_names(others)}, which the query does not read"
            )


class OffsetLookup(ABC):
    """Looks up offsets, at brokers or in files, and resolves bounds by them."""

    @abstractmethod
    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return start or end offsets; the end depends on `isolation.level`."""

    @abstractmethod
    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the first offset at or after each timestamp in ms; None if no record is late enough."""

    def first_offsets(
        self, bound: Bound, partitions: Iterable[TopicPartition], when_no_offset: Literal["error", "latest"]
    ) -> Offsets:
        """Return the starting offsets. Raises OptionError for a timestamp after all records."""
        found = self._resolve(bound, partitions)
        without = [partition for partition, offset in found.items() if offset is None]
        if without and when_no_offset == "error":
            raise OptionError(
                f"option {bound.option!r}: {partition_names(without)} has no record at or after that time; "
                "with option startingOffsetsByTimestampStrategy=latest it starts at its end"
            )
        return self._or_end(found)

    def last_offsets(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the ending offsets; a timestamp after all records means the end of the partition."""
        return self._or_end(self._resolve(bound, partitions))

    def _resolve(
        self, bound: Bound, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Resolve a bound to offsets; None if no record is late enough."""
        needed = bound.needs(partitions)
        found: dict[TopicPartition, int | None] = dict(bound.known())
        for edge in Edge:
            found |= self.offsets(edge, [partition for partition, wanted in needed.items() if wanted is edge])
        times = {partition: wanted for partition, wanted in needed.items() if not isinstance(wanted, Edge)}
        return found | self.by_time(times)

    def _or_end(self, found: Mapping[TopicPartition, int | None]) -> Offsets:
        ends = self.offsets(Edge.LATEST, [partition for partition, offset in found.items() if offset is None])
        return {
            partition: ends[partition] if offset is None else offset for partition, offset in found.items()
        }


def ranges_of(starting: Bound, ending: Bound, start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the non-empty ranges between resolved bounds. Raises OptionError for a start behind its end."""
    for partition in sorted(end):
        if start[partition] > end[partition]:
            raise OptionError(
                f"{partition} should be read from {start[partition]} (option {starting.option!r}), which is "
                f"behind its end {end[partition]} (option {ending.option!r})"
            )
    return ranges_between(start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOptions(RowOptions):
    """The options that say from where to where."""

    starting_offsets: str | None = option("startingOffsets", None, STARTING_OFFSETS)
    starting_offsets_by_timestamp: str | None = option(
        "startingOffsetsByTimestamp", None,
        'the start, as JSON: `{"orders": {"0": 1767222000000}}`, timestamps in milliseconds. Each '
        "partition starts at its first record with that timestamp or a later one. Every partition "
        "has to be named",
    )  # fmt: skip
    starting_timestamp: int | None = option(
        "startingTimestamp", None,
        "one start for all partitions, as a timestamp in milliseconds. It wins over "
        "`startingOffsetsByTimestamp`, which wins over `startingOffsets`",
        at_least=0,
    )  # fmt: skip
    when_no_offset: Literal["error", "latest"] = option(
        "startingOffsetsByTimestampStrategy", "error",
        "the handling of a partition without a record that late: `error`, or `latest`, which starts "
        "at its end",
    )  # fmt: skip
    ending_offsets: str | None = option(
        "endingOffsets", "latest",
        "the end: `latest`, or offsets as JSON, which are excluded; `-1` is the end of a partition",
        only="batch",
    )  # fmt: skip
    ending_offsets_by_timestamp: str | None = option(
        "endingOffsetsByTimestamp", None,
        "the end, as JSON like `startingOffsetsByTimestamp`; records from that timestamp on are excluded",
        only="batch",
    )  # fmt: skip
    ending_timestamp: int | None = option(
        "endingTimestamp", None,
        "one end for all partitions. It wins over `endingOffsetsByTimestamp`, which wins over "
        "`endingOffsets`",
        at_least=0, only="batch",
    )  # fmt: skip


def starting(options: BoundOptions, default: Edge, *, streaming: bool) -> Bound:
    """Return the start: startingTimestamp wins over startingOffsetsByTimestamp over startingOffsets."""
    found = _by_time("starting", options.starting_timestamp, options.starting_offsets_by_timestamp)
    if found is not None:
        return found
    bound = _by_offset("startingOffsets", options.starting_offsets, default)
    if not streaming and (bound.edge is Edge.LATEST or LATEST in (bound.offsets or {}).values()):
        raise OptionError("option 'startingOffsets' of a batch cannot be latest: no record would be read")
    return bound


def ending(options: BoundOptions) -> Bound:
    """Return the end: endingTimestamp wins over endingOffsetsByTimestamp over endingOffsets."""
    found = _by_time("ending", options.ending_timestamp, options.ending_offsets_by_timestamp)
    if found is not None:
        return found
    bound = _by_offset("endingOffsets", options.ending_offsets, Edge.LATEST)
    if bound.edge is Edge.EARLIEST or EARLIEST in (bound.offsets or {}).values():
        raise OptionError("option 'endingOffsets' cannot be earliest: no record would be read")
    return bound


def _by_time(side: str, time: int | None, by_partition: str | None) -> Bound | None:
    if time is not None:
        return Bound(time=time, option=f"{side}Timestamp")
    if by_partition is None:
        return None
    name = f"{side}OffsetsByTimestamp"
    times = parse_offsets(name, by_partition)
    if any(time < 0 for time in times.values()):
        raise OptionError(f"option {name!r} holds timestamps in milliseconds, which cannot be negative")
    return Bound(times=times, option=name)


def _by_offset(name: str, text: str | None, default: Edge) -> Bound:
    text = text or default.value
    for edge in Edge:
        if text.lower() == edge.value:
            return Bound(edge=edge, option=name)
    if text.isalpha():  # probably a misspelt word: an error about JSON would not help
        raise OptionError(f"option {name!r} must be earliest, latest, or offsets as JSON, not {text!r}")
    offsets = parse_offsets(name, text)
    if any(offset < EARLIEST for offset in offsets.values()):
        raise OptionError(f"option {name!r} holds offsets, {EARLIEST} (earliest) or {LATEST} (latest)")
    return Bound(offsets=offsets, option=name)
