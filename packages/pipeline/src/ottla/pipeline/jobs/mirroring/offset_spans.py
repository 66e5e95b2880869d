"""Which offset of a topic became which offset of its copy. Pure.

Records that follow each other without a gap, in the topic and in its copy, are a span: its offsets all moved
by the same distance. Compaction and transactions leave gaps, on either side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MOST = 10_000
"""Spans that are kept of each partition; of the older ones every second goes when there are twice as many."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """So many records, from an offset of the original on, are in the copy from another offset on."""

    source: int
    target: int
    count: int

    @property
    def next_source(self) -> int:
        """The first offset of the original behind it."""
        return self.source + self.count

    @property
    def next_target(self) -> int:
        """The first offset of the copy behind it."""
        return self.target + self.count


class Spans:
    """The spans of one partition, in their order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = sorted(spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def last(self) -> Span | None:
        """The newest span: behind it the copy goes on."""
        return self._spans[-1] if self._spans else None

    def add(self, found: Iterable[Span]) -> list[Span]:
        """Take spans that follow; return those that are new, or longer than before."""
        changed: dict[int, Span] = {}
        for each in found:
            last = self.last
            if last is not None and (last.next_source, last.next_target) == (each.source, each.target):
                self._spans[-1] = each = Span(last.source, last.target, last.count + each.count)
            else:
                self.put(each)
            changed[each.source] = each
        return list(changed.values())

    def put(self, span: Span) -> None:
        """Take a span in the place of the one that begins at the same offset, if there is one."""
        at = bisect_left(self._spans, span.source, key=lambda each: each.source)
        is_there = at < len(self._spans) and self._spans[at].source == span.source
        self._spans[at : at + is_there] = [span]

    def remove(self, source: int) -> None:
        """Forget the span that begins at an offset of the original, if there is one."""
        self._spans = [each for each in self._spans if each.source != source]

    def cut(self, end: int) -> tuple[list[Span], list[Span]]:
        """Forget what would be in the copy from an offset on; return what became shorter, and what is gone.

        The first span stays, though it may be empty: it says where the partition begins.
        """
        at = max(1, bisect_left(self._spans, end, key=lambda each: each.target))
        gone, self._spans = self._spans[at:], self._spans[:at]
        last = self._spans[-1]
        if last.next_target <= end:
            return [], gone
        self._spans[-1] = Span(last.source, last.target, max(0, end - last.target))
        return [self._spans[-1]], gone

    def since(self, target: int) -> list[Span]:
        """Return the last span, and those before it that reach behind an offset of the copy."""
        at = bisect_right(self._spans, target, key=lambda each: each.next_target)
        return self._spans[min(at, len(self._spans) - 1) :] if self._spans else []

    def translate(self, offset: int) -> int | None:
        """Return where a reader goes on in the copy who would go on at `offset` in the original.

        Nothing is left out: between spans it is the end of the one before. None while there are no spans.
        """
        if not self._spans:
            return None
        index = bisect_right(self._spans, offset, key=lambda each: each.source) - 1
        if index < 0:
            return self._spans[0].target
        span = self._spans[index]
        return span.target + min(offset - span.source, span.count)

    def thin_out(self, most: int = MOST) -> list[Span]:
        """Drop every second of the older spans when there are twice too many; return what was dropped.

        Offsets in what was dropped become the end of the span before: a reader then sees some records again.
        """
        if len(self._spans) <= 2 * most:
            return []
        older, newer = self._spans[:-most], self._spans[-most:]
        self._spans = [*older[::2], *newer]
        return older[1::2]


def spans_of(offsets: Sequence[int], first_target: int) -> list[Span]:
    """Return the spans of ascending offsets that were written one after another."""
    import numpy as np

    if not len(offsets):
        return []
    of = np.asarray(offsets, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(of) != 1) + 1])
    ends = np.append(starts[1:], len(of))
    return [
        Span(int(of[start]), first_target + int(start), int(end - start))
        for start, end in zip(starts, ends, strict=True)
    ]
