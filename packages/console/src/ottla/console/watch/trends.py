"""Trends: how fast a number grows, and when a group that catches up will have caught up. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ottla.console.watch.history import Point

TREND_S: Final = 600
"""The time over which a trend is taken."""
_LEAST_POINTS: Final = 3
_STEADY: Final = 0.02
"""A change of less than this part of the value over the time of a trend is none."""


@dataclass(frozen=True, slots=True)
class Trend:
    """How a lag changes: records per second, more than 0 when it grows; `caught_up_s` when it will be 0."""

    per_s: float
    caught_up_s: float | None = None

    @property
    def text(self) -> str:
        """The trend in words."""
        if self.per_s > 0:
            return f"grows by {_rate(self.per_s)} records/s"
        return "steady" if self.per_s == 0 else f"shrinks by {_rate(-self.per_s)} records/s"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1g}"


def rates(points: Sequence[Point]) -> list[Point]:
    """Return how much a number grew per second between each two points, where it did not shrink."""
    return [
        Point(later.at_s, grown, grown, grown)
        for earlier, later in pairwise(points)
        if (grown := (later.mean - earlier.mean) / (later.at_s - earlier.at_s)) >= 0
    ]


def growth(points: Sequence[Point]) -> tuple[float, int] | None:
    """Return how much a number has grown, and in how many seconds; None for less than two points."""
    if len(points) < 2:
        return None
    grown = sum(max(0.0, later.mean - earlier.mean) for earlier, later in pairwise(points))
    return grown, points[-1].at_s - points[0].at_s


def trend(points: Sequence[Point], now_s: int) -> Trend | None:
    """Return the trend of the last ten minutes, as the slope of the line through their means.

    None while there are too few points. What changes by less than a fiftieth is steady.
    """
    recent = [point for point in points if point.at_s >= now_s - TREND_S]
    if len(recent) < _LEAST_POINTS:
        return None
    middle_s = sum(point.at_s for point in recent) / len(recent)
    middle = sum(point.mean for point in recent) / len(recent)
    spread = sum((point.at_s - middle_s) ** 2 for point in recent)
    slope = sum((point.at_s - middle_s) * (point.mean - middle) for point in recent) / spread
    span_s = recent[-1].at_s - recent[0].at_s
    if abs(slope) * span_s <= _STEADY * max(middle, 1):
        return Trend(0.0)
    return Trend(slope, recent[-1].mean / -slope if slope < 0 else None)
