"""Filters of a query that reduce what is read. Pure.

Topic, partition and offset are known before the read, so filters on them are applied completely here. A
filter on the timestamp only moves the start to the first record that is late enough, and Spark applies it
too: timestamps need not grow with offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from math import floor
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ottla.pipeline.source.offset_ranges import OffsetRange
from ottla.protocol.topics import TopicPartition

_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda given, value: given == value,
    EqualNullSafe: lambda given, value: given == value,
    GreaterThan: lambda given, value: given > value,
    GreaterThanOrEqual: lambda given, value: given >= value,
    LessThan: lambda given, value: given < value,
    LessThanOrEqual: lambda given, value: given <= value,
    In: lambda given, value: given in value,
    StringStartsWith: lambda given, value: given.startswith(value),
    StringEndsWith: lambda given, value: given.endswith(value),
    StringContains: lambda given, value: value in given,
}


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The restrictions that pushed filters place on a read."""

    topics: tuple[Filter, ...] = ()
    partitions: tuple[Filter, ...] = ()
    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None
    """Records before this time are not needed."""

    def keeps(self, partition: TopicPartition) -> bool:
        """Whether a partition may contain matching rows."""
        by_topic = all(_holds(each, partition.topic) for each in self.topics)
        return by_topic and all(_holds(each, partition.partition) for each in self.partitions)

    def narrow(self, whole: OffsetRange) -> OffsetRange:
        """Return the part of a range that may contain matching rows; it may be empty."""
        end = whole.end if self.end_offset is None else min(whole.end, self.end_offset)
        start = max(whole.start, self.first_offset)
        return OffsetRange(whole.partition, start, max(start, end))


def push(filters: Iterable[Filter]) -> tuple[Narrowed, list[Filter]]:
    """Return the restrictions of the filters, and the filters that Spark still has to apply."""
    narrowed, left = Narrowed(), []
    for each in filters:
        following = _narrowed(narrowed, each)
        if following is None or _column(each) == "timestamp":
            left.append(each)
        narrowed = following or narrowed
    return narrowed, left


def _narrowed(before: Narrowed, given: Filter) -> Narrowed | None:
    column = _column(given)
    if column == "topic" and _is_test(given):
        return replace(before, topics=(*before.topics, given))
    if column == "partition" and _is_test(given):
        return replace(before, partitions=(*before.partitions, given))
    if column == "offset" and (bounds := _whole_bounds(given)) is not None:
        first, end = bounds
        ends = [each for each in (before.end_offset, end) if each is not None]
        return replace(
            before, first_offset=max(before.first_offset, first), end_offset=min(ends, default=None)
        )
    if column == "timestamp" and isinstance(given, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        since_ms = _milliseconds(given.value)
        # Records without a timestamp have -1; a lookup of time 0 would skip them.
        return replace(before, since_ms=max(before.since_ms or 0, since_ms)) if since_ms > 0 else None
    return None


def _column(given: Filter) -> str:
    """Return the column of a filter; none of these columns is ever null, so NOT needs no special case."""
    inner = given.child if isinstance(given, Not) else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_test(given: Filter) -> bool:
    inner = given.child if isinstance(given, Not) else given
    if isinstance(inner, In) and None in inner.value:
        return False  # NOT IN with a null is never true: leave it to Spark, which has three truth values
    return type(inner) in _TESTS or isinstance(inner, IsNotNull)


def _holds(given: Filter, value: Any) -> bool:
    if isinstance(given, Not):
        return not _holds(given.child, value)
    return isinstance(given, IsNotNull) or _TESTS[type(given)](value, given.value)


def _whole_bounds(given: Filter) -> tuple[int, int | None] | None:
    """Return the first offset that passes a filter, and the offset behind the last one."""
    match given:
        case EqualTo(value=int(value)) | EqualNullSafe(value=int(value)):
            return value, value + 1
        case GreaterThan(value=int(value)):
            return value + 1, None
        case GreaterThanOrEqual(value=int(value)):
            return value, None
        case LessThan(value=int(value)):
            return 0, value
        case LessThanOrEqual(value=int(value)):
            return 0, value + 1
        case IsNotNull():
            return 0, None
    return None


def _milliseconds(value: datetime) -> int:
    """Return the lowest record timestamp in ms that can pass; Spark's timestamps are microseconds."""
    return floor(value.timestamp() * 1_000)
