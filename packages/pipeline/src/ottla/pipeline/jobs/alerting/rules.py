"""What is asked of metrics. Declarations; pure."""

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
    """Read `3 of 5`."""
    if not isinstance(given, str):
        return given
    match = _TIMES.fullmatch(given)
    if match is None:
        raise ValueError(f'must be a number of windows out of the last ones, such as "3 of 5", not {given!r}')
    return int(match[1]), int(match[2])


class Anomaly(Table):
    """A window that is far from those before it."""

    method: Literal["mad", "zscore"] = "mad"
    """mad: how far from the median, in median deviations, which outliers hardly move. zscore: how far from
    the mean, in standard deviations."""
    score: float = Field(default=4.0, gt=0)
    """What is farther than so many (standard) deviations is no chance."""
    history: Seconds = 3_600.0
    """Which windows it is compared with: those that began within this time before."""
    warm_up: int = Field(default=10, ge=3)
    """With fewer windows to compare with, nothing is said."""
    least: float = Field(default=0.0, ge=0)
    """A smaller difference is none, however quiet it was before."""
    side: Literal["both", "above", "below"] = "both"


class Rule(Table):
    """One thing that should not be."""

    name: str = Field(examples=["cpu-high"], pattern=r"^[A-Za-z0-9._-]+$")
    metric: str = Field(examples=["cpu"], min_length=1)
    where: dict[str, str] = Field(default_factory=dict)
    """Labels that a series has to have; default: all series of the metric."""
    window: Seconds = 60.0
    """Samples are taken together for so long."""
    take: Take = "mean"
    """What is looked at of a window."""
    above: float | None = None
    below: float | None = None
    anomaly: Anomaly | None = None
    missing: Seconds | None = None
    """A series that says nothing for so long."""
    lasting: Seconds | None = None
    """All windows of this time have to be wrong; default: one is enough."""
    times: Annotated[tuple[int, int] | None, BeforeValidator(_times)] = None
    """So many windows of the last ones have to be wrong."""
    repeat: Seconds | None = None
    """An alert that goes on is sent again so often; default: once."""
    severity: str | None = None

    def inspect(self) -> Iterator[Mistake]:
        """Yield what cannot be; paths are within this table."""
        is_threshold = self.above is not None or self.below is not None
        if [is_threshold, self.anomaly is not None, self.missing is not None].count(True) != 1:
            yield Mistake((), "needs above and/or below, or [rules.anomaly], or missing: one of the three")
        if self.above is not None and self.below is not None and self.below > self.above:
            yield Mistake(("below",), "must not be more than above: between them all is well")
        yield from self._inspect_windows()
        if self.missing is not None:
            for name in ("window", "take", "lasting", "times"):
                if name in self.model_fields_set:
                    yield Mistake((name,), "is about windows, and a missing series has none")

    def _inspect_windows(self) -> Iterator[Mistake]:
        if self.lasting is not None and self.times is not None:
            yield Mistake(("times",), "says the same as lasting; leave one of them out")
        if self.lasting is not None and self.lasting < self.window:
            yield Mistake(("lasting",), "must not be shorter than window")
        if self.times is not None and not 0 < self.times[0] <= self.times[1]:
            yield Mistake(("times",), "must be a part of the windows, and at least one: 3 of 5")
        if self.anomaly is not None and self.anomaly.warm_up * self.window > self.anomaly.history:
            yield Mistake(("anomaly", "warm_up"), "there are fewer windows in history")

    @property
    def window_ms(self) -> int:
        """How long a window is."""
        return max(1, round(self.window * 1_000))

    @property
    def needed(self) -> tuple[int, int]:
        """How many windows have to be wrong, and out of how many."""
        if self.lasting is not None:
            count = math.ceil(self.lasting / self.window)
            return count, count
        return self.times or (1, 1)

    @property
    def longest_s(self) -> float:
        """How long a series may be silent before this rule has no more to say of it."""
        _, out_of = self.needed
        return self.missing or self.window * out_of

    def is_about(self, metric: str, labels: Mapping[str, str]) -> bool:
        """Whether a series is looked at."""
        return metric == self.metric and all(labels.get(name) == is_ for name, is_ in self.where.items())
