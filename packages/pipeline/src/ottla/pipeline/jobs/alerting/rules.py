"""Rules about metrics. Declarations; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
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
