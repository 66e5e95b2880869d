"""The progress of a run: the status of its queries, written to a file and passed to a listener."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Any, Protocol

from ottla.client.page_server import Page
from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.state_files import BatchCounts, StateFile
from ottla.pipeline.source.offsets import of_topics


class Interval:
    """Whether an action is due: the first time at once, then `every_s` after its last start."""

    def __init__(self, every_s: float, last_ms: float = -inf) -> None:
        self._every_ms = every_s * 1_000
        self._last_ms = last_ms

    def is_due(self, now_ms: float) -> bool:
        """Whether the interval has passed."""
        return now_ms - self._last_ms >= self._every_ms

    def restart(self, now_ms: float) -> None:
        """Count the interval from now on."""
        self._last_ms = now_ms


RECENT = 60
"""The number of batches for rates and times."""
SILENT_S = 15.0
"""A pipeline in state running whose status is older than this was killed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A completed batch."""

    id: int
    rows: int
    ms: float
    lag: int | None = None
    """Records that existed and were not read yet."""
    watermark: str | None = None
    state_rows: int = 0
    """Rows that Spark stores for windows and sessions that are still open."""


def batch_of(progress: Mapping[str, Any]) -> Batch | None:
    """Return the batch of a progress report of Spark; None if it processed nothing."""
    times = progress.get("durationMs") or {}
    if "addBatch" not in times:
        return None
    return Batch(
        int(progress["batchId"]),
        _rows(progress),
        float(times.get("triggerExecution", times["addBatch"])),
        lag(progress),
        (progress.get("eventTime") or {}).get("watermark"),
        sum(int(operator.get("numRowsTotal") or 0) for operator in progress.get("stateOperators") or ()),
    )


def _rows(progress: Mapping[str, Any]) -> int:
    """Return the records of a batch. Spark counts a record each time that the batch reads it."""
    seen = int(progress.get("numInputRows") or 0)
    spans = [_span(source) for source in progress.get("sources") or ()]
    return min(seen, sum(span for span in spans if span is not None)) if None not in spans and spans else seen


def _span(source: Mapping[str, Any]) -> int | None:
    begun, read = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
    return _between(begun, read) if begun is not None and read is not None else None


def _between(begun: Mapping[str, Mapping[str, int]], ends: Mapping[str, Mapping[str, int]]) -> int:
    """Return the number of offsets between two positions; a new partition begins at 0."""
    return sum(
        max(0, end - begun.get(topic, {}).get(partition, 0))
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
    )


def lag(progress: Mapping[str, Any]) -> int | None:
    """Return the number of offsets that are not read yet; None if no source reports them."""
    found = [_lag_of(source) for source in progress.get("sources") or ()]
    known = [lag for lag in found if lag is not None]
    return sum(known) if known else None


def _lag_of(source: Mapping[str, Any]) -> int | None:
    latest, read = _offsets(source.get("latestOffset")), _offsets(source.get("endOffset"))
    if latest is None or read is None:
        return None
    return _between(read, latest)


def _offsets(given: Any) -> dict[str, dict[str, int]] | None:
    """Read offsets by topic and partition; Spark gives them as JSON, or as text with JSON.

    Drops the starting offsets of the first batch.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return None
    return of_topics(given) if isinstance(given, dict) else None


@dataclass(slots=True)
class QueryStatus:
    """The status of one query."""

    batch: int = -1
    batches: int = 0
    rows: int = 0
    """Since the start of this run."""
    lag: int | None = None
    watermark: str | None = None
    state_rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    """Since the first run of the pipeline: late, dead, and further counts of its kind."""
    recent: deque[Batch] = field(default_factory=lambda: deque(maxlen=RECENT))
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """The last status from the previous run."""

    def add(self, batch: Batch) -> None:
        """Add a batch. A batch that is already included is ignored."""
        if batch.id <= self.batch:
            return
        self.batch, self.lag, self.watermark = batch.id, batch.lag, batch.watermark or self.watermark
        self.batches += 1
        self.rows += batch.rows
        self.state_rows = batch.state_rows
        self.recent.append(batch)

    @property
    def rows_per_s(self) -> float:
        """Rows per second of processing time, over recent batches."""
        spent = sum(batch.ms for batch in self.recent)
        return sum(batch.rows for batch in self.recent) * 1_000 / spent if spent else 0.0

    def summary(self) -> dict[str, Any]:
        """Return it as JSON."""
        times = sorted(batch.ms for batch in self.recent)
        return {
            **self._place(),
            "batches": self.batches,
            "rows": self.rows,
            "rows_per_s": round(self.rows_per_s, 1),
            "batch_ms": {"median": _at(times, 0.5), "p95": _at(times, 0.95), "max": _at(times, 1.0)},
            "counts": self.counts,
        }

    def _place(self) -> dict[str, Any]:
        """Return the progress. A run without new records has no batch and keeps the previous progress."""
        names = ("batch", "lag", "watermark", "state_rows")
        own = {name: getattr(self, name) for name in names} | {"batch": self.batch if self.batches else None}
        return own if self.batches else {name: self.earlier.get(name, own[name]) for name in names}


def _at(times: list[float], share: float) -> float | None:
    return round(times[min(int(len(times) * share), len(times) - 1)], 1) if times else None


def state_now(status: Mapping[str, Any], now_s: float) -> str:
    """Return the state in a status file, or `killed` if a running pipeline stopped updating it."""
    said = str(status.get("state", "unknown"))
    if said == "running" and now_s - float(status.get("updated_s", 0)) > SILENT_S:
        return "killed"
    return said


STATUS = "status.json"
WRITE_INTERVAL_S = 2.0
"""The minimum interval between writes of the file."""

StatusListener = Callable[[Mapping[str, Any]], None]


class ReportedJob(Protocol):
    """The facts of a job that its report repeats."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def checkpoint(self) -> str: ...

    @property
    def adds_up(self) -> bool:
        """Whether the rows of its queries add up: each query has rows of its own."""
        ...


class ProgressReport:
    """Batches and counts of a run's queries. Thread-safe."""

    def __init__(self, job: ReportedJob, watch: StatusListener | None) -> None:
        self._job = job
        self._checkpoint = Path(job.checkpoint)
        self._watch = watch
        self._statuses: dict[str, QueryStatus] = {}
        self._batch_counts: dict[str, BatchCounts] = {}
        self._earlier = _queries(self._checkpoint / STATUS)
        self._begun = time.time()
        self._state = "running"
        self._error: str | None = None
        self._writes = Interval(WRITE_INTERVAL_S)
        self._guard = threading.RLock()

    def begin(self, query: str) -> None:
        """Register a query without batches in this run; its status is that of earlier runs."""
        with self._guard:
            self._status(query)
            self.batch_counts(query)

    def add(self, query: str, batch: Batch) -> None:
        """Add a completed batch."""
        with self._guard:
            self._status(query).add(batch)

    def batch_counts(self, query: str) -> BatchCounts:
        """Return the counts of a query."""
        with self._guard:
            if query not in self._batch_counts:
                self._batch_counts[query] = BatchCounts(
                    StateFile(self._checkpoint / "counts" / f"{query}.json")
                )
            return self._batch_counts[query]

    def publish(self, state: str, error: str | None = None) -> None:
        """Publish the state of the run, or its end."""
        with self._guard:
            self._state, self._error = state, error
            status = self._summary(error)
            if state != "running" or self._is_due:
                self._keep(status)
        if self._watch is not None:
            self._watch(status)

    def publish_if_due(self) -> None:
        """Publish that it runs: to the listener each time, to the file when a write is due."""
        if self._is_due or self._watch is not None:
            self.publish("running")

    def page(self, path: str) -> Page:
        """Return a page about the run: `/status` is what the file has, `/health` fails once the run has."""
        with self._guard:
            status = self._summary(self._error)
        if path == "/health":
            is_failed = status["state"] == "failed"
            health = {"healthy": not is_failed, "reasons": [self._error] if is_failed else []}
            return _json_page(health, HTTPStatus.SERVICE_UNAVAILABLE if is_failed else HTTPStatus.OK)
        if path in ("/", "/status"):
            return _json_page(status)
        return _json_page({"error": "no such page; there are /health, /status"}, HTTPStatus.NOT_FOUND)

    def write_heartbeat(self) -> None:
        """Write to the file that it runs, for phases without batches, for example while Spark starts."""
        with self._guard:
            if self._state == "running" and self._is_due:
                self._keep(self._summary())

    def _status(self, query: str) -> QueryStatus:
        with self._guard:
            return self._statuses.setdefault(query, QueryStatus(earlier=self._earlier.get(query, {})))

    @property
    def _is_due(self) -> bool:
        return self._writes.is_due(_now_ms())

    def _keep(self, status: Mapping[str, Any]) -> None:
        StateFile(self._checkpoint / STATUS).write(status, durable=False)
        self._writes.restart(_now_ms())

    def _summary(self, error: str | None = None) -> dict[str, Any]:
        for name, batch_counts in self._batch_counts.items():
            self._status(name).counts = batch_counts.totals
        return {
            "name": self._job.name,
            "kind": self._job.kind,
            "adds_up": self._job.adds_up,
            "state": self._state,
            "error": error,
            "begun_s": self._begun,
            "updated_s": time.time(),
            "silent_after_s": SILENT_S,
            "queries": {name: status.summary() for name, status in self._statuses.items()},
        }


def _json_page(value: object, status: HTTPStatus = HTTPStatus.OK) -> Page:
    return Page(json.dumps(value, indent=1, default=str).encode() + b"\n", status=status)


def _now_ms() -> float:
    return time.monotonic() * 1_000


def _queries(status: Path) -> dict[str, Any]:
    """Return the last status of the queries. The file is informational, so a damaged one is ignored."""
    try:
        return dict(StateFile(status).read().get("queries", {}))
    except PipelineError:
        return {}
