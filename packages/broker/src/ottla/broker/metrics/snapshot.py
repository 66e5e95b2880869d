"""A frozen copy of all metrics, made on the event loop for a reader on another thread.

Gauges read the broker's live objects, so only the event loop may read them. A snapshot is made in slices of
a millisecond at most: between two slices the loop serves other tasks, so that the metrics of thousands of
partitions do not hold up a request. The samples of one snapshot may therefore be some milliseconds apart.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from ottla.broker.metrics.catalogue import Kind, kind_of
from ottla.broker.metrics.registry import (
    Gauge,
    Histogram,
    HistogramCounts,
    Meter,
    Metric,
    MetricName,
    Metrics,
)
from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from ottla.broker.runtime.loop_budget import Turn

SNAPSHOT_WITHIN_S: Final = 5.0
"""How long a reader waits for the event loop. Prometheus itself gives a scrape ten seconds."""

T = TypeVar("T")


class Sample(NamedTuple):
    """One metric at the time of the snapshot; `value` is a HistogramCounts for a histogram."""

    name: MetricName
    kind: Kind
    value: float | HistogramCounts


@frozen
class Snapshot:
    """The values of all metrics, in columns: thousands of small objects would start the garbage collector."""

    names: tuple[MetricName, ...]
    kinds: tuple[Kind, ...]
    values: tuple[float | HistogramCounts, ...]

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, self.names, self.kinds, self.values)

    def __len__(self) -> int:
        return len(self.names)


class SnapshotNotTaken(RuntimeError):
    """The event loop made no snapshot in time, or the broker stops."""


async def take_snapshot(metrics: Metrics, turn: Turn) -> Snapshot:
    """Copy the value of every metric; yields to the event loop when its turn is spent.

    A metric that is removed meanwhile, with its topic perhaps, is left out: its gauge may read a closed log.
    """
    names: list[MetricName] = []
    kinds: list[Kind] = []
    values: list[float | HistogramCounts] = []
    for name in metrics.names():
        metric = metrics.find(name)
        if metric is not None:
            names.append(name)
            kinds.append(kind_of(metric))
            values.append(_value_of(metric))
        await turn.yield_if_spent()
    for read in list(metrics.families):
        for sample in read():
            if sample is not None:
                names.append(sample[0])
                kinds.append("gauge")
                values.append(sample[1])
            await turn.yield_if_spent()
    return Snapshot(tuple(names), tuple(kinds), tuple(values))


def _value_of(metric: Metric) -> float | HistogramCounts:
    match metric:
        case Meter():
            return metric.count
        case Gauge():
            return metric.value
        case Histogram():
            return metric.counts()


class MadeOnLoop(Generic[T]):
    """Makes a value on the event loop whenever another thread asks for one.

    `run` is the loop's part; `take` is called by the other thread. Requests that arrive while a value is made
    share the next one, so each sees everything that happened before it asked.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], loop: asyncio.AbstractEventLoop) -> None:
        self._make = make
        self._loop = loop
        self._waiting: list[concurrent.futures.Future[T]] = []
        self._asked = asyncio.Event()
        self._stopped = False

    def take(self, within_s: float = SNAPSHOT_WITHIN_S) -> T:
        """Return a new value; blocks the calling thread, which must not be the loop's.

        Raises SnapshotNotTaken when the loop is stuck for `within_s` or does not run any more.
        """
        wanted: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            self._loop.call_soon_threadsafe(self._ask, wanted)
        except RuntimeError as error:
            raise SnapshotNotTaken("the event loop is closed") from error
        try:
            return wanted.result(within_s)
        except TimeoutError as error:
            raise SnapshotNotTaken(f"the event loop made no snapshot within {within_s:g} s") from error

    def _ask(self, wanted: concurrent.futures.Future[T]) -> None:
        if self._stopped:
            wanted.set_exception(SnapshotNotTaken("the broker stops"))
            return
        self._waiting.append(wanted)
        self._asked.set()

    async def run(self) -> None:
        """Make the values that are asked for, until cancelled."""
        waiting: list[concurrent.futures.Future[T]] = []
        try:
            while True:
                await self._asked.wait()
                self._asked.clear()
                waiting, self._waiting = self._waiting, []
                await self._serve(waiting)
        finally:
            self._stopped = True
            for wanted in (*waiting, *self._waiting):
                if not wanted.done():
                    wanted.set_exception(SnapshotNotTaken("the broker stops"))

    async def _serve(self, waiting: list[concurrent.futures.Future[T]]) -> None:
        try:
            made = await self._make()
        except Exception as error:  # a gauge that fails fails the scrape, not the snapshots to come
            for wanted in waiting:
                wanted.set_exception(error)
        else:
            for wanted in waiting:
                wanted.set_result(made)
