"""Which task reads what. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition, from `start` up to, not including, `end`."""

    partition: TopicPartition
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)


def ranges_between(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> list[OffsetRange]:
    """Return what lies between two places, in order, without the empty ones."""
    found = (OffsetRange(partition, start[partition], end[partition]) for partition in sorted(end))
    return [each for each in found if len(each)]


def split(
    ranges: Iterable[OffsetRange], least: int | None = None, longest: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into pieces of about the same size: at least `least` pieces, none above `longest` offsets.

    There are fewer where there are fewer offsets.
    """
    whole = [each for each in ranges if len(each)]
    pieces = [piece for each in whole for piece in _cut(each, _count(len(each), longest))]
    if least is None or len(pieces) >= least:
        return pieces
    total = sum(len(each) for each in whole)
    counts = [
        max(_count(len(each), longest), -(-least * len(each) // total)) for each in whole
    ]  # rounded up: never fewer than were asked for
    return [piece for each, count in zip(whole, counts, strict=True) for piece in _cut(each, count)]


def _count(size: int, longest: int | None) -> int:
    return 1 if longest is None else -(-size // longest)


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = min(count, len(whole))
    edges = [whole.start + len(whole) * index // count for index in range(count + 1)]
    return [OffsetRange(whole.partition, edges[index], edges[index + 1]) for index in range(count)]
