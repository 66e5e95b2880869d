"""Alerts on Spark: records become samples of metrics, series of samples have a state and a timer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.alerting.rules import Rule
from ottla.pipeline.jobs.alerting.series_state import AlertEvent, SeriesState
from ottla.pipeline.jobs.declaration import Mistake, Names, Seconds, Table
from ottla.pipeline.jobs.value_parsing import REASON
from ottla.pipeline.lazy import functions, pd
from ottla.pipeline.spark import pandas_of_any_age

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.state import GroupState

    Judge = Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]

METRIC, LABELS, TIME, VALUE = "_metric", "_labels", "_time", "_value"
"""The columns of a sample; labels are a JSON object, sorted by name."""

_READ, _BROKEN = "_read", "_broken"
_TIME_TYPES = {"iso": "STRING", "s": "DOUBLE", "ms": "BIGINT", "us": "BIGINT"}
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000}
_LAST_S = 253_402_300_799
"""The end of the year 9999, the latest timestamp of Spark."""


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


class Metrics(Table):
    """The form of samples: JSON objects, and the names of their fields."""

    name: str = Field(default="name", min_length=1)
    value: str = Field(default="value", min_length=1)
    time: str = Field(default="time", min_length=1)
    time_unit: Literal["iso", "s", "ms", "us"] = "iso"
    """iso: ISO 8601 text. Others: numbers, since 1970."""
    labels: Names | None = None
    """Fields that identify a series. Default: all fields of the object in the field `labels`."""
    late_after: Seconds = 60.0
    """A sample that is older than the newest one by this much is late: it is counted, and otherwise ignored.
    """
    forget_after: Seconds = 86_400.0
    """A series that is silent for this long is forgotten, and its alerts are resolved."""
    ahead_at_most: Seconds = 3_600.0
    """A timestamp that is later than that of its record by this much is invalid: it would make all others
    late."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        fields = self._fields()
        for name, at in zip(
            fields, (("name",), ("value",), ("time",), *[("labels",)] * len(fields)), strict=False
        ):
            if fields.count(name) > 1:
                yield Mistake(at, f"the field {name!r} already has another meaning")
            if "`" in name:
                yield Mistake(at, "must not contain quotes")

    def _fields(self) -> list[str]:
        return [self.name, self.value, self.time, *(["labels"] if self.labels is None else self.labels)]

    def add_to(self, records: DataFrame) -> DataFrame:
        """Add METRIC, LABELS, TIME and VALUE, and REASON for records that are not samples."""
        text = functions.col("value").cast("string")
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
        read = records.withColumn(_READ, functions.from_json(text, self._ddl(), options))
        found = (
            read.withColumn(METRIC, functions.col(_READ)[self.name])
            .withColumn(LABELS, self._labels())
            .withColumn(TIME, self._time())
            .withColumn(VALUE, functions.col(_READ)[self.value])
        )
        return found.withColumn(REASON, self._reason()).drop(_READ)

    def _ddl(self) -> str:
        time = f"`{self.time}` {_TIME_TYPES[self.time_unit]}"
        named = ["labels"] if self.labels is None else self.labels
        kind = "MAP<STRING, STRING>" if self.labels is None else "STRING"
        labels = "".join(f", `{name}` {kind}" for name in named)
        return f"`{self.name}` STRING, `{self.value}` DOUBLE, {time}{labels}, {_BROKEN} STRING"

    def _labels(self) -> Column:
        """Return labels as text that is equal for equal labels."""
        read = functions.col(_READ)
        if self.labels is None:
            entries = functions.map_entries(read["labels"])
        else:
            pairs = [
                functions.struct(functions.lit(name).alias("key"), read[name].alias("value"))
                for name in self.labels
            ]
            entries = functions.array(*pairs)
        there = functions.filter(entries, lambda each: each["value"].isNotNull())
        text = functions.to_json(functions.map_from_entries(functions.array_sort(there)))
        return functions.coalesce(text, functions.lit("{}"))

    def _time(self) -> Column:
        given = functions.col(_READ)[self.time]
        if self.time_unit == "iso":
            return functions.try_to_timestamp(given)
        per_s = _PER_S[self.time_unit]
        is_known = functions.abs(given) <= _LAST_S * per_s
        micros = functions.round(given * (1_000_000 // per_s)).cast("bigint")
        return functions.when(is_known, functions.timestamp_micros(micros))

    def _reason(self) -> Column:
        read = functions.col(_READ)
        is_broken = read.isNull() | read[_BROKEN].isNotNull()
        latest = functions.col("timestamp") + functions.make_dt_interval(
            secs=functions.lit(self.ahead_at_most)
        )
        value = functions.col(VALUE)
        is_number = value.isNotNull() & ~functions.isnan(value) & (functions.abs(value) < float("inf"))
        reason = functions.when(functions.col("value").isNull(), "has no value")
        reason = reason.when(is_broken, "is no JSON with these fields")
        reason = reason.when(functions.col(METRIC).isNull(), f"has no {self.name}")
        reason = reason.when(~is_number, f"{self.value} is no number")
        reason = reason.when(functions.col(TIME).isNull(), f"{self.time} is no time")
        return reason.when(functions.col(TIME) > latest, f"{self.time} is too far after that of the record")
