"""Counters, meters, gauges and histograms under Kafka's own names.

A metric is known by its JMX name in Kafka: group (`kafka.server`), type (`BrokerTopicMetrics`), name
(`MessagesInPerSec`) and tags (`topic=…`). Marking and updating are a few instructions without locks: only the
event loop reads and writes here. A reader on another thread gets a snapshot (`snapshot.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    import asyncio

TICK_MS: Final = 5_000
_ROTATE_MS: Final = 60_000
_ONE_MINUTE_ALPHA: Final = 1 - math.exp(-TICK_MS / 60_000)
_BOUNDS: Final = tuple(round(0.01 * 1.25**step, 6) for step in range(90))
"""Upper bounds of a histogram's buckets: 0.01 to about 4.3 million, each a quarter above the last."""
BUCKET_BOUNDS: Final = _BOUNDS
_BACKGROUND_TASK: Final = ("ottla.broker", "BackgroundTask")


class MetricName(NamedTuple):
    """Kafka's name of a metric: `group:type=…,name=…,tag=value`."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        tags = "".join(f",{tag}={value}" for tag, value in self.tags)
        return f"{self.group}:type={self.type},name={self.name}{tags}"


class Meter:
    """Counts events, and their rate per second over about the last minute."""

    __slots__ = ("_last", "_started", "count", "one_minute_rate")

    def __init__(self) -> None:
        self.count = 0
        self.one_minute_rate = 0.0
        self._last = 0
        self._started = False

    def mark(self, events: int = 1) -> None:
        """Count `events` more."""
        self.count += events

    def tick(self) -> None:
        """Update the rate with the events since the last tick, `TICK_MS` ago."""
        rate = (self.count - self._last) * 1000 / TICK_MS
        self._last = self.count
        if self._started:
            self.one_minute_rate += _ONE_MINUTE_ALPHA * (rate - self.one_minute_rate)
        elif rate:
            self.one_minute_rate, self._started = rate, True


class Gauge:
    """Reads a value when asked."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        """The value as it is now."""
        return self._read()


class Histogram:
    """Counts values in buckets; quantiles cover the last one to two minutes.

    A quantile is the upper bound of its bucket, so it is at most a quarter too high.
    """

    __slots__ = ("_buckets", "_earlier", "_largest", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._earlier = self._buckets
        self._largest = 0.0
        self.rotate()

    def update(self, value: float, times: int = 1) -> None:
        """Count a value `times` times, in the unit of the metric's name (mostly milliseconds)."""
        self.count += times
        self.total += value * times
        self._buckets[bisect_left(_BOUNDS, value)] += times
        if value > self._largest:
            self._largest = value

    def take(self, buckets: Sequence[int], count: int, total: float, largest: float) -> None:
        """Add values counted elsewhere: a bucket for each of `BUCKET_BOUNDS`, one for larger values."""
        self.count += count
        self.total += total
        self._largest = max(self._largest, largest)
        for bucket, number in enumerate(buckets):
            if number:
                self._buckets[bucket] += number

    def rotate(self) -> None:
        """Drop the values from before the last rotation."""
        self._earlier = self._buckets
        self._buckets = [0] * (len(_BOUNDS) + 1)

    @property
    def max(self) -> float:
        """The largest value ever counted."""
        return self._largest

    @property
    def mean(self) -> float:
        """The mean of all values ever counted."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, fraction: float) -> float:
        """Return a value that `fraction` of the recent values do not exceed; 0 when there are none."""
        return self.counts().quantile(fraction)

    def counts(self) -> HistogramCounts:
        """Return a frozen copy of the counts."""
        recent = tuple(now + before for now, before in zip(self._buckets, self._earlier, strict=True))
        return HistogramCounts(self.count, self.total, self._largest, recent)


@frozen
class HistogramCounts:
    """A histogram at one time: all values by count and total, the recent ones by bucket."""

    count: int
    total: float
    largest: float
    recent: tuple[int, ...]

    def quantile(self, fraction: float) -> float:
        """Return a value that `fraction` of the recent values do not exceed; 0 when there are none."""
        wanted, seen = fraction * sum(self.recent), 0
        for bucket, count in enumerate(self.recent):
            seen += count
            if count and seen >= wanted:
                return min(_BOUNDS[bucket], self.largest) if bucket < len(_BOUNDS) else self.largest
        return 0.0


Metric = Meter | Gauge | Histogram
Family = Callable[[], Iterable[tuple[MetricName, float] | None]]
_M = TypeVar("_M", Meter, Histogram)


class Metrics:
    """All metrics of one broker. Asking twice for one name gives the same metric."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}
        self.families: list[Family] = []
        """Gauges that are many and come and go: each call yields those of now, with their values.

        Between two, None ends a step of the work that is made for them.
        """
        self._rotated_ms = 0.0

    def meter(self, group: str, type: str, name: str, /, **tags: str) -> Meter:  # noqa: A002 - Kafka's word
        """Return the meter of that name, made on first use."""
        return self._ensure(metric_name(group, type, name, tags), Meter)

    def histogram(self, group: str, type: str, name: str, /, **tags: str) -> Histogram:  # noqa: A002
        """Return the histogram of that name, made on first use."""
        return self._ensure(metric_name(group, type, name, tags), Histogram)

    def gauge(
        self,
        group: str,
        type: str,  # noqa: A002
        name: str,
        read: Callable[[], float],
        /,
        **tags: str,
    ) -> Gauge:
        """Register `read` as the value of that name; a later call replaces it."""
        gauge = Gauge(read)
        self._metrics[metric_name(group, type, name, tags)] = gauge
        return gauge

    def remove(self, group: str, type: str, name: str, /, **tags: str) -> None:  # noqa: A002
        """Remove one metric, if it exists."""
        self._metrics.pop(metric_name(group, type, name, tags), None)

    def tick(self, monotonic_ms: float) -> None:
        """Bring rates and histogram windows up to date; call it every `TICK_MS`."""
        rotate = monotonic_ms - self._rotated_ms >= _ROTATE_MS
        if rotate:
            self._rotated_ms = monotonic_ms
        for metric in self._metrics.values():
            if isinstance(metric, Meter):
                metric.tick()
            elif rotate and isinstance(metric, Histogram):
                metric.rotate()

    def get(self, group: str, type: str, name: str, /, **tags: str) -> Metric | None:  # noqa: A002
        """Return a metric, or None."""
        return self._metrics.get(metric_name(group, type, name, tags))

    def names(self) -> list[MetricName]:
        """Return the names of all metrics."""
        return list(self._metrics)

    def find(self, name: MetricName) -> Metric | None:
        """Return the metric of a name from `names`, or None when it has been removed."""
        return self._metrics.get(name)

    def __iter__(self) -> Iterator[tuple[MetricName, Metric]]:
        """Iterate over a copy of all metrics, gauges of families included."""
        found = [sample for read in self.families for sample in read() if sample is not None]
        computed = [(name, Gauge(partial(float, value))) for name, value in found]
        return iter([*self._metrics.items(), *computed])

    def __len__(self) -> int:
        return len(self._metrics)

    def _ensure(self, name: MetricName, kind: type[_M]) -> _M:
        metric = self._metrics.get(name)
        if metric is None:
            metric = self._metrics[name] = kind()
        if not isinstance(metric, kind):
            raise TypeError(f"{name} is a {type(metric).__name__}, not a {kind.__name__}")
        return metric


def metric_name(group: str, type: str, name: str, tags: dict[str, str] | None = None) -> MetricName:  # noqa: A002
    """Build a metric's name; tags are sorted."""
    return MetricName(group, type, name, tuple(sorted(tags.items())) if tags else ())


# --- gauges of background tasks: whether each runs, and when it last began


def show_running(metrics: Metrics, task: asyncio.Task[None], name: str) -> None:
    """Register a gauge: 1 while an endless task runs, 0 once it has failed; removed when it is cancelled."""
    gauge = metrics.gauge(*_BACKGROUND_TASK, "Running", lambda: not task.done(), task=name)

    def ended(_: object) -> None:
        if task.cancelled() and metrics.get(*_BACKGROUND_TASK, "Running", task=name) is gauge:
            metrics.remove(*_BACKGROUND_TASK, "Running", task=name)

    task.add_done_callback(ended)


def show_last_run(metrics: Metrics, now_ms: Callable[[], float], name: str) -> Callable[[], None]:
    """Register a gauge of the time since a repeated task last began; call the result when it begins."""
    began = [now_ms()]
    metrics.gauge(*_BACKGROUND_TASK, "SinceLastRunMs", lambda: now_ms() - began[0], task=name)

    def mark_begun() -> None:
        began[0] = now_ms()

    return mark_begun
