"""Series in Spark's state store: a state for each, and a timer for its next evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.alerting.metrics import LABELS, METRIC, TIME, VALUE
from ottla.pipeline.jobs.alerting.rules import Rule
from ottla.pipeline.jobs.alerting.series_state import AlertEvent, SeriesState
from ottla.pipeline.lazy import functions, pd
from ottla.pipeline.spark import pandas_of_any_age

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.state import GroupState

    Judge = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]

COLUMNS = "at_ms LONG, id STRING, state STRING, key STRING, value STRING"


def alert_record(
    pipeline: str, rule: Rule | None, event: AlertEvent, metric: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return an alert event as a row of COLUMNS; a repeated event has the same id."""
    about = {"pipeline": pipeline, "rule": event.rule, "metric": metric, "labels": dict(labels)}
    said = {
        "state": event.state,
        "why": event.why,
        "value": event.value,
        "since": _iso(event.since_ms),
        "at": _iso(event.at_ms),
        "number": event.number,
        "severity": None if rule is None else rule.severity,
    }
    key = _text(about)
    unique = _text([about, event.state, event.since_ms, event.number])
    id_ = hashlib.sha256(unique.encode()).hexdigest()[:32]
    value = _text({"id": id_} | about | said)
    return {"at_ms": event.at_ms, "id": id_, "state": event.state, "key": key, "value": value}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_AT = "_at_ms"


@dataclass(frozen=True)
class AlertEvaluator:
    """Evaluates rules over series."""

    pipeline: str
    rules: Sequence[Rule]
    forget_ms: int

    def alerts(self, samples: DataFrame, late_after_s: float) -> DataFrame:
        """Return the alert events about samples, with the columns COLUMNS.

        Spark drops late samples one by one.
        """
        need_pandas()
        metrics = sorted({rule.metric for rule in self.rules})
        late = f"{int(late_after_s * 1_000)} milliseconds"
        wanted = samples.where(functions.col(METRIC).isin(*metrics)).select(
            METRIC, LABELS, TIME, functions.unix_millis(TIME).alias(_AT), VALUE
        )
        series = wanted.withWatermark(TIME, late).groupBy(METRIC, LABELS)
        with pandas_of_any_age():
            return series.applyInPandasWithState(
                self._judge(), COLUMNS, "kept STRING", "append", "EventTimeTimeout"
            )

    def _judge(self) -> Judge:
        """Return the function that Spark calls for each series with samples, or whose timer has expired."""

        def judge(
            key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
        ) -> Iterator[pd.DataFrame]:
            pairs = [pair for frame in frames for pair in zip(frame[_AT], frame[VALUE], strict=True)]
            until_ms = state.getCurrentWatermarkMs()
            series = SeriesState.of(state.get[0]) if state.exists else SeriesState()
            rows, due_ms = self.step(series, str(key[0]), str(key[1]), pairs, until_ms)
            if series.is_empty:
                state.remove()
            else:
                state.update((series.kept(),))
                if due_ms is not None:
                    # Spark calls it for timers before the watermark.
                    state.setTimeoutTimestamp(max(due_ms - 1, until_ms + 1))
            if rows:
                yield pd.DataFrame(rows)

        return judge

    def step(
        self,
        series: SeriesState,
        metric: str,
        labels: str,
        samples: Sequence[tuple[int, float]],
        until_ms: int,
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Add samples to a series; return the events up to a time, and when to evaluate it next. Pure."""
        named: dict[str, str] = json.loads(labels)
        rules = {rule.name: rule for rule in self.rules if rule.is_about(metric, named)}
        own = tuple(rules.values())
        # In order, because a sum of floats depends on it, and a repeated batch must have the same result.
        for at_ms, value in sorted(samples):
            series.add(own, self.forget_ms, int(at_ms), float(value))
        events = series.advance(own, self.forget_ms, until_ms)
        rows = [alert_record(self.pipeline, rules.get(event.rule), event, metric, named) for event in events]
        return rows, series.due(own, self.forget_ms)


def need_pandas() -> None:
    """Raise PipelineError with an install command if pandas is missing, through which Spark passes state."""
    from importlib.util import find_spec

    if find_spec("pandas") is None:
        raise PipelineError("alerts need a library: pip install 'ottla-pipeline[alerts]'")
