"""The options for starting and ending offsets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import Options
from ottla.pipeline.source.offset_json import EARLIEST, LATEST, Offsets, parse_offsets, partition_names
from ottla.protocol.topics import TopicPartition


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


def starting(options: Options, default: Edge, *, streaming: bool) -> Bound:
    """Return the start: startingTimestamp wins over startingOffsetsByTimestamp over startingOffsets."""
    found = _by_time(options, "startingTimestamp", "startingOffsetsByTimestamp")
    if found is not None:
        return found
    bound = _by_offset(options, "startingOffsets", default)
    if not streaming and (bound.edge is Edge.LATEST or LATEST in (bound.offsets or {}).values()):
        raise OptionError("option 'startingOffsets' of a batch cannot be latest: no record would be read")
    return bound


def ending(options: Options) -> Bound:
    """Return the end: endingTimestamp wins over endingOffsetsByTimestamp over endingOffsets."""
    found = _by_time(options, "endingTimestamp", "endingOffsetsByTimestamp")
    if found is not None:
        return found
    bound = _by_offset(options, "endingOffsets", Edge.LATEST)
    if bound.edge is Edge.EARLIEST or EARLIEST in (bound.offsets or {}).values():
        raise OptionError("option 'endingOffsets' cannot be earliest: no record would be read")
    return bound


def _by_time(options: Options, one: str, many: str) -> Bound | None:
    if one in options:
        return Bound(time=options.count(one, at_least=0), option=one)
    text = options.text(many)
    if text is None:
        return None
    times = parse_offsets(many, text)
    if any(time < 0 for time in times.values()):
        raise OptionError(f"option {many!r} holds timestamps in milliseconds, which cannot be negative")
    return Bound(times=times, option=many)


def _by_offset(options: Options, name: str, default: Edge) -> Bound:
    text = (options.text(name) or default.value).strip()
    for edge in Edge:
        if text.lower() == edge.value:
            return Bound(edge=edge, option=name)
    if text.isalpha():  # probably a misspelt word: an error about JSON would not help
        raise OptionError(f"option {name!r} must be earliest, latest, or offsets as JSON, not {text!r}")
    offsets = parse_offsets(name, text)
    if any(offset < EARLIEST for offset in offsets.values()):
        raise OptionError(f"option {name!r} holds offsets, {EARLIEST} (earliest) or {LATEST} (latest)")
    return Bound(offsets=offsets, option=name)
