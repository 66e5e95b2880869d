"""Spans that map offsets of a topic to offsets of its copy. Pure.

Records that are adjacent both in the topic and in its copy form a span, within which the difference of
offsets is constant. Compaction and transactions leave gaps on either side.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ottla.pipeline.lazy import np

MOST = 10_000
"""The minimum number of spans of a partition that are kept; at twice as many, every second older one is
removed."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """`count` records, from offset `source` of the original and from offset `target` of the copy."""

    source: int
    target: int
    count: int

    @property
    def next_source(self) -> int:
        """The first offset of the original behind the span."""
        return self.source + self.count

    @property
    def next_target(self) -> int:
        """The first offset of the copy behind the span."""
        return self.target + self.count


class Spans:
    """The spans of one partition, in order."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans = sorted(spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def last(self) -> Span | None:
        """The newest span; the copy continues behind it."""
        return self._spans[-1] if self._spans else None

    def add(self, found: Iterable[Span]) -> list[Span]:
        """Append spans; return those that are new or became longer."""
        changed: dict[int, Span] = {}
        for span in found:
            last = self.last
            if last is not None and (last.next_source, last.next_target) == (span.source, span.target):
                self._spans[-1] = span = Span(last.source, last.target, last.count + span.count)
            else:
                self.put(span)
            changed[span.source] = span
        return list(changed.values())

    def put(self, span: Span) -> None:
        """Put a span in place of the one that begins at the same offset, if any."""
        at = bisect_left(self._spans, span.source, key=lambda each: each.source)
        is_there = at < len(self._spans) and self._spans[at].source == span.source
        self._spans[at : at + is_there] = [span]

    def remove(self, source: int) -> None:
        """Remove the span that begins at an offset of the original, if any."""
        self._spans = [span for span in self._spans if span.source != source]

    def cut(self, end: int) -> tuple[list[Span], list[Span]]:
        """Drop offsets of the copy from `end` on; return the shortened spans, and the removed ones.

        The first span stays, even if it becomes empty, because it says where the partition begins.
        """
        at = max(1, bisect_left(self._spans, end, key=lambda each: each.target))
        gone, self._spans = self._spans[at:], self._spans[:at]
        last = self._spans[-1]
        if last.next_target <= end:
            return [], gone
        self._spans[-1] = Span(last.source, last.target, max(0, end - last.target))
        return [self._spans[-1]], gone

    def since(self, target: int) -> list[Span]:
        """Return the last span, and earlier ones that reach beyond an offset of the copy."""
        at = bisect_right(self._spans, target, key=lambda each: each.next_target)
        return self._spans[min(at, len(self._spans) - 1) :] if self._spans else []

    def translate(self, offset: int) -> int | None:
        """Return the offset at which a reader of the copy continues that was at `offset` in the original.

        No record is skipped: an offset between spans becomes the end of the previous one. None without spans.
        """
        if not self._spans:
            return None
        index = bisect_right(self._spans, offset, key=lambda each: each.source) - 1
        if index < 0:
            return self._spans[0].target
        span = self._spans[index]
        return span.target + min(offset - span.source, span.count)

    def thin_out(self, most: int = MOST) -> list[Span]:
        """Remove every second older span if there are twice too many; return the removed ones.

        Offsets within a removed span become the end of the previous span, so a reader sees some records
        again.
        """
        if len(self._spans) <= 2 * most:
            return []
        older, newer = self._spans[:-most], self._spans[-most:]
        self._spans = [*older[::2], *newer]
        return older[1::2]


def spans_of(offsets: Sequence[int], first_target: int) -> list[Span]:
    """Return the spans of ascending offsets that were written one after another."""
    if not len(offsets):
        return []
    of = np.asarray(offsets, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(of) != 1) + 1])
    ends = np.append(starts[1:], len(of))
    return [
        Span(int(of[start]), first_target + int(start), int(end - start))
        for start, end in zip(starts, ends, strict=True)
    ]
