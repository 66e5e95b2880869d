"""The status of a pipeline's queries. Pure: progress in, output of `status` out."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.pipeline.source.offset_json import of_topics

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
        sum(int(each.get("numRowsTotal") or 0) for each in progress.get("stateOperators") or ()),
    )


def _rows(progress: Mapping[str, Any]) -> int:
    """Return the records of a batch. Spark counts a record each time that the batch reads it."""
    seen = int(progress.get("numInputRows") or 0)
    spans = [_span(each) for each in progress.get("sources") or ()]
    return min(seen, sum(each for each in spans if each is not None)) if None not in spans and spans else seen


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
    found = [_lag_of(each) for each in progress.get("sources") or ()]
    known = [each for each in found if each is not None]
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
        spent = sum(each.ms for each in self.recent)
        return sum(each.rows for each in self.recent) * 1_000 / spent if spent else 0.0

    def summary(self) -> dict[str, Any]:
        """Return it as JSON."""
        times = sorted(each.ms for each in self.recent)
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
