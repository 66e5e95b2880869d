"""Offset ranges, and how tasks share them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets of one partition from `start` up to but excluding `end`."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return the non-empty ranges between two sets of offsets, in order."""
    found = (OffsetRange(partition, start[partition], end[partition]) for partition in sorted(end))
    return [each for each in found if len(each)]


def split(
    ranges: Iterable[OffsetRange], least: int | None = None, longest: int | None = None
) -> list[OffsetRange]:
    """Split ranges evenly into at least `least` pieces, none with more than `longest` offsets.

    There are fewer pieces if there are fewer offsets.
    """
    whole = [each for each in ranges if len(each)]
    pieces = [piece for each in whole for piece in _cut(each, _count(len(each), longest))]
    if least is None or len(pieces) >= least:
        return pieces
    total = sum(len(each) for each in whole)
    counts = [
        max(_count(len(each), longest), -(-least * len(each) // total)) for each in whole
    ]  # rounded up, so that there are never fewer than requested
    return [piece for each, count in zip(whole, counts, strict=True) for piece in _cut(each, count)]


def _count(size: int, longest: int | None) -> int:
    return 1 if longest is None else -(-size // longest)


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, len(whole))
    edges = [whole.start + len(whole) * index // count for index in range(count + 1)]
    return [OffsetRange(whole.partition, edges[index], edges[index + 1]) for index in range(count)]
