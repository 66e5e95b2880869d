"""The progress of a run, written to its status file and passed to a listener."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.interval import Interval
from ottla.pipeline.jobs.query_status import Batch, QueryStatus
from ottla.pipeline.jobs.state_files import BatchCounts, StateFile

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
            self._state = state
            status = self._summary(error)
            if state != "running" or self._is_due:
                self._keep(status)
        if self._watch is not None:
            self._watch(status)

    def publish_if_due(self) -> None:
        """Publish that it runs: to the listener each time, to the file when a write is due."""
        if self._is_due or self._watch is not None:
            self.publish("running")

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
            "queries": {name: each.summary() for name, each in self._statuses.items()},
        }


def _now_ms() -> float:
    return time.monotonic() * 1_000


def _queries(status: Path) -> dict[str, Any]:
    """Return the last status of the queries. The file is informational, so a damaged one is ignored."""
    try:
        return dict(StateFile(status).read().get("queries", {}))
    except PipelineError:
        return {}
