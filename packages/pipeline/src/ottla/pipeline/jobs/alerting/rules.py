"""Rules about metrics: their declarations, and the windows that they compare. Pure."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ottla.pipeline.jobs.declaration import Mistake, Seconds, Table

Take = Literal["mean", "min", "max", "sum", "count", "last"]

_TIMES = re.compile(r"\s*(\d+)\s*(?:of|/)\s*(\d+)\s*")


def _times(given: Any) -> Any:
    """Parse `3 of 5`."""
    if not isinstance(given, str):
        return given
    match = _TIMES.fullmatch(given)
    if match is None:
        raise ValueError(f'must be a number of windows out of the last ones, such as "3 of 5", not {given!r}')
    return int(match[1]), int(match[2])


class Anomaly(Table):
    """A window that deviates strongly from earlier ones."""

    method: Literal["mad", "zscore"] = "mad"
    """mad: distance from the median, in median absolute deviations, which outliers hardly affect. zscore:
    distance from the mean, in standard deviations."""
    score: float = Field(default=4.0, gt=0)
    """A distance above this number of deviations is an anomaly."""
    history: Seconds = 3_600.0
    """The period of earlier windows that a window is compared with."""
    warm_up: int = Field(default=10, ge=3)
    """With fewer windows to compare with, no alert fires."""
    least: float = Field(default=0.0, ge=0)
    """A smaller difference is ignored, however small the deviation."""
    side: Literal["both", "above", "below"] = "both"


class Rule(Table):
    """A condition under which an alert fires."""

    name: str = Field(examples=["cpu-high"], pattern=r"^[A-Za-z0-9._-]+$")
    metric: str = Field(examples=["cpu"], min_length=1)
    where: dict[str, str] = Field(default_factory=dict)
    """Labels that a series must have; default: all series of the metric."""
    window: Seconds = 60.0
    """The length of a window of samples."""
    take: Take = "mean"
    """The aggregate of a window that is compared."""
    above: float | None = None
    below: float | None = None
    anomaly: Anomaly | None = None
    missing: Seconds | None = None
    """The length of silence after which the alert fires."""
    lasting: Seconds | None = None
    """All windows of this period must violate the rule; default: one is enough."""
    times: Annotated[tuple[int, int] | None, BeforeValidator(_times)] = None
    """This many of the last windows must violate the rule."""
    repeat: Seconds | None = None
    """The interval at which a firing alert is sent again; default: once only."""
    severity: str | None = None

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        is_threshold = self.above is not None or self.below is not None
        if [is_threshold, self.anomaly is not None, self.missing is not None].count(True) != 1:
            yield Mistake(
                (), ("needs above and/or below, or [rules.anomaly], or missing: exactly one of the three")
            )
        if self.above is not None and self.below is not None and self.below > self.above:
            yield Mistake(
                ("below",), ("must not be more than above: values between them do not violate the rule")
            )
        yield from self._inspect_windows()
        if self.missing is not None:
            for name in ("window", "take", "lasting", "times"):
                if name in self.model_fields_set:
                    yield Mistake((name,), "concerns windows, and a missing series has none")

    def _inspect_windows(self) -> Iterator[Mistake]:
        if self.lasting is not None and self.times is not None:
            yield Mistake(("times",), "means the same as lasting; remove one of them")
        if self.lasting is not None and self.lasting < self.window:
            yield Mistake(("lasting",), "must not be shorter than window")
        if self.times is not None and not 0 < self.times[0] <= self.times[1]:
            yield Mistake(("times",), "must be a number of the last windows, at least one: 3 of 5")
        if self.anomaly is not None and self.anomaly.warm_up * self.window > self.anomaly.history:
            yield Mistake(("anomaly", "warm_up"), "history contains fewer windows")

    @property
    def window_ms(self) -> int:
        """The length of a window."""
        return max(1, round(self.window * 1_000))

    @property
    def needed(self) -> tuple[int, int]:
        """How many of how many last windows must violate the rule."""
        if self.lasting is not None:
            count = math.ceil(self.lasting / self.window)
            return count, count
        return self.times or (1, 1)

    @property
    def longest_s(self) -> float:
        """The period of silence after which this rule needs no more evaluation of a series."""
        _, out_of = self.needed
        return self.missing or self.window * out_of

    def is_about(self, metric: str, labels: Mapping[str, str]) -> bool:
        """Whether the rule applies to a series."""
        return metric == self.metric and all(labels.get(name) == is_ for name, is_ in self.where.items())


_MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution, in median absolute deviations."""


@dataclass(slots=True)
class Window:
    """The aggregate of the samples in a window."""

    count: int
    total: float
    least: float
    most: float
    last_ms: int
    last: float

    @classmethod
    def of(cls, at_ms: int, value: float) -> Window:
        """Return a window with one sample."""
        return cls(1, value, value, value, at_ms, value)

    def add(self, at_ms: int, value: float) -> None:
        """Add another sample."""
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)
        # Of several samples with the same timestamp, the largest counts as the last, so that their order does
        # not matter.
        self.last_ms, self.last = max((self.last_ms, self.last), (at_ms, value))

    def taken(self, take: Take) -> float:
        """Return the value that a rule compares."""
        match take:
            case "mean":
                return self.total / self.count
            case "min":
                return self.least
            case "max":
                return self.most
            case "sum":
                return self.total
            case "count":
                return float(self.count)
            case "last":
                return self.last


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a window violates a rule, and why."""

    is_wrong: bool
    why: str


def judge(rule: Rule, value: float, before: Sequence[float]) -> Verdict:
    """Compare the value of a window with the limits, or with earlier windows."""
    if rule.anomaly is not None:
        return _odd(rule.anomaly, value, before)
    if rule.above is not None and value > rule.above:
        return Verdict(True, f"{_number(value)} is above {_number(rule.above)}")
    if rule.below is not None and value < rule.below:
        return Verdict(True, f"{_number(value)} is below {_number(rule.below)}")
    return Verdict(False, f"{_number(value)} is within the limits")


def _odd(rule: Anomaly, value: float, before: Sequence[float]) -> Verdict:
    if len(before) < rule.warm_up:
        return Verdict(False, f"{len(before)} windows are too few to compare with")
    expected, deviation = _usual(rule, before)
    off = value - expected
    is_far = abs(off) > max(rule.score * deviation, rule.least)
    is_side = rule.side == "both" or (off > 0) == (rule.side == "above")
    usual = f"{_number(expected)} ± {_number(deviation)}"
    return Verdict(is_far and is_side, f"{_number(value)}, where {usual} is usual")


def _usual(rule: Anomaly, before: Sequence[float]) -> tuple[float, float]:
    """Return the centre of values, and their deviation from it as a standard deviation."""
    if rule.method == "zscore":
        return statistics.fmean(before), statistics.pstdev(before)
    middle = statistics.median(before)
    return middle, _MAD_TO_DEVIATION * statistics.median(abs(value - middle) for value in before)


def _number(value: float) -> str:
    return f"{value:.6g}"
