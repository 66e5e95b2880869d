"""What a run says of itself: to a file, and to whoever watches."""

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
SAY_S = 2.0
"""How often the file is written, at most."""

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
    """Batches and counts of a run's queries. Any thread may add to it, and have it say them."""

    def __init__(self, job: ReportedJob, watch: StatusListener | None) -> None:
        self._job = job
        self._checkpoint = Path(job.checkpoint)
        self._watch = watch
        self._statuses: dict[str, QueryStatus] = {}
        self._batch_counts: dict[str, BatchCounts] = {}
        self._earlier = _queries(self._checkpoint / STATUS)
        self._begun = time.time()
        self._state = "running"
        self._writes = Interval(SAY_S)
        self._guard = threading.RLock()

    def begin(self, query: str) -> None:
        """Take up a query that has no batches yet in this run: it stands where earlier runs left it."""
        with self._guard:
            self._status(query)
            self.batch_counts(query)

    def add(self, query: str, batch: Batch) -> None:
        """Take in a batch that is done."""
        with self._guard:
            self._status(query).add(batch)

    def batch_counts(self, query: str) -> BatchCounts:
        """Return what keeps the counts of a query."""
        with self._guard:
            if query not in self._batch_counts:
                self._batch_counts[query] = BatchCounts(
                    StateFile(self._checkpoint / "counts" / f"{query}.json")
                )
            return self._batch_counts[query]

    def say(self, state: str, error: str | None = None) -> None:
        """Say how the run is doing, or how it ended."""
        with self._guard:
            self._state = state
            status = self._summary(error)
            if state != "running" or self._is_due:
                self._keep(status)
        if self._watch is not None:
            self._watch(status)

    def say_sometimes(self) -> None:
        """Say that it runs: to whoever watches each time, and to the file now and then."""
        if self._is_due or self._watch is not None:
            self.say("running")

    def beat(self) -> None:
        """Say to the file that it runs, where nothing else does: it may wait for records, or for Spark."""
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
    """Return what was said last of queries. The file tells people, and is not worth a failure."""
    try:
        return dict(StateFile(status).read().get("queries", {}))
    except PipelineError:
        return {}
