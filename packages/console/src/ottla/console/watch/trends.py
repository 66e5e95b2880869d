"""Trends: how fast a lag grows, since when a group is behind, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from ottla.admin.group_descriptions import SHARE
from ottla.admin.groups import GroupProgress
from ottla.console.clusters.group_rows import uncommitted
from ottla.console.watch.history import COARSE_S, FINE_FOR_S, MINUTE_S, Point
from ottla.console.watch.paces import Pace
from ottla.console.web.formats import age
from ottla.protocol.topics import TopicPartition

TREND_S: Final = 600
"""The time over which a trend is taken."""
_LEAST_POINTS: Final = 3
_LEAST_OF_THIRD: Final = 2
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
    return f"{per_s:,.0f}".replace(",", "\u202f") if per_s >= 10 else f"{per_s:.2g}"


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


def falls_behind(points: Sequence[Point], now_s: int) -> bool:
    """Whether a lag of the last ten minutes is at its lowest now above its highest then: third by third.

    The lag of a group that keeps up swings between two commits, and its trend has either sign.
    """
    recent = [point for point in points if point.at_s >= now_s - TREND_S]
    third = len(recent) // 3
    if third < _LEAST_OF_THIRD:
        return False
    return min(point.low for point in recent[-third:]) > max(point.high for point in recent[:third])


_GAP_S: Final = 3 * MINUTE_S
"""A wider gap between two looks of the last day: the console did not run, or the cluster did not answer."""
_LITTLE: Final = 0.1
"""A lag of less than this part of the present one was not yet the present trouble."""
_MOST: Final = 0.8
"""A partition with this part of the lag is named."""


def behind_since(points: Sequence[Point], lag: int) -> int | None:
    """Return the time from which on a group has been behind, as it is now: the end of its last small lag.

    None while it has no lag, or was not behind at the last look; the first point where it was behind all the
    time that is known.
    """
    if lag <= 0:
        return None
    for index in range(len(points) - 1, -1, -1):
        if points[index].low <= _LITTLE * lag:
            return points[index + 1].at_s if index + 1 < len(points) else None
    return points[0].at_s if points else None


@dataclass(frozen=True, slots=True)
class Since:
    """When something began; without `is_exact` it may have begun earlier, when no look was taken."""

    at_s: int
    is_exact: bool


def held_since(points: Sequence[Point], looks: Sequence[Point], now_s: int) -> Since | None:
    """Return since when there has been a point at each look, up to the last one; None if there is none.

    Points of the last day are a minute apart, and ten before that.
    """
    held, looked = {point.at_s for point in points}, sorted(point.at_s for point in looks)
    began_s: int | None = None
    for at_s in reversed(looked):
        if at_s not in held:
            break
        if began_s is not None and began_s - at_s > (_GAP_S if at_s > now_s - FINE_FOR_S else 2 * COARSE_S):
            return Since(began_s, is_exact=False)
        began_s = at_s
    else:
        return None if began_s is None else Since(began_s, is_exact=False)
    return None if began_s is None else Since(began_s, is_exact=True)


JUDGED_AFTER_S: Final = 60
"""How long a group is behind before it is judged: a member reads, handles and commits in turns."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a group lags, in a sentence; `level` is good, warn or bad, or nothing while that is not known."""

    level: Literal["good", "warn", "bad", ""]
    text: str


def diagnosis(progress: GroupProgress, found: Trend | None, pace: Pace) -> Diagnosis:
    """Return why a group lags, by its progress now, the trend of its lag, and what looks saw of it."""
    members = progress.description.members
    behind = {where.partition: where.lag for where in progress.partitions if where.lag and where.lag > 0}
    lag = sum(behind.values())
    if not lag:
        return _caught_up(progress)
    if not members:
        return Diagnosis("bad", "No member reads: start its application, or see why it has ended.")
    where = _largest(behind, lag)
    unowned = sum(not owned.owners for owned in progress.partitions if owned.partition in behind)
    if unowned:
        return Diagnosis("bad", f"{unowned} of its partitions with a lag have no member.{where}")
    if pace.behind_s is not None and pace.behind_s < JUDGED_AFTER_S:
        text = "The console has seen it behind for less than a minute: too early to judge."
        return Diagnosis("", f"{text}{where}")
    return _of_members(progress, found, pace, where)


def _caught_up(progress: GroupProgress) -> Diagnosis:
    """Return the diagnosis of a group without a lag: it may have committed in a part only."""
    if uncommitted(progress):
        return Diagnosis("", "It has read everything where it has committed.")
    return Diagnosis(
        "good", f"It has read everything{'.' if progress.description.members else '; no member reads.'}"
    )


def _of_members(progress: GroupProgress, found: Trend | None, pace: Pace, where: str) -> Diagnosis:
    """Return what the members do that have had the time to read."""
    count = len(progress.description.members)
    who = "Its one member" if count == 1 else f"Its {count} members"
    if pace.still_s is not None and pace.still_s >= JUDGED_AFTER_S:
        has, why = ("has", "it hangs, fails at one record, or works long at what it has")
        if count > 1:
            has, why = ("have", "they hang, fail at one record, or work long at what they have")
        done = "acknowledged" if progress.description.type == SHARE else "committed"
        return Diagnosis("bad", f"{who} {has} {done} nothing for {age(pace.still_s)}: {why}.{where}")
    reads, catches = ("reads", "catches") if count == 1 else ("read", "catch")
    rate = f" at {_rate(pace.per_s)} records/s" if pace.per_s else ""
    if pace.falls_behind:
        return Diagnosis("bad", f"{who} {reads}{rate}, slower than records are written.{where}")
    if found is not None and found.per_s < 0:
        return Diagnosis("warn", f"{who} {reads}{rate}, and {catches} up.{where}")
    return Diagnosis("warn", f"{who} {reads}{rate}.{where}")


def _largest(behind: Mapping[TopicPartition, int], lag: int) -> str:
    partition = max(behind, key=lambda known: behind[known])
    if len(behind) == 1 or behind[partition] < _MOST * lag:
        return ""
    part = 100 * behind[partition] // lag
    return f" {part} % of the lag is in {partition}: look for a key that most records have."
