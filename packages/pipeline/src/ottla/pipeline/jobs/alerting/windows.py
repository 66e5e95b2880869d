"""Aggregates of windows, and the detection of thresholds and anomalies. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.pipeline.jobs.alerting.rules import Anomaly, Rule, Take

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
    return middle, _MAD_TO_DEVIATION * statistics.median(abs(each - middle) for each in before)


def _number(value: float) -> str:
    return f"{value:.6g}"
