"""Alert pipelines: rules about metrics produce a record when an alert fires or is resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.jobs.alerting.on_spark import AlertEvaluator, Metrics, need_pandas
from ottla.pipeline.jobs.alerting.rules import Rule
from ottla.pipeline.jobs.declaration import Job, Mistake, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.topic_sink import TopicSink, dropped_by_watermark, send_dead_letters
from ottla.pipeline.jobs.value_parsing import REASON
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.run import EachBatch, Run

_STATES = ("firing", "resolved")


class Alerts(Job):
    """Metrics → thresholds, anomalies and silence → a topic of alerts that fire and are resolved."""

    kind: Literal["alerts"] = "alerts"
    source: Topics
    metrics: Metrics = Field(default_factory=Metrics)
    rules: list[Rule] = Field(min_length=1)
    alerts: TopicSink
    dead_letters: TopicSink

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("metrics", self.metrics.inspect())
        yield from within("alerts", self.alerts.inspect(self.source))
        yield from within("dead_letters", self.dead_letters.inspect(self.source))
        names = [rule.name for rule in self.rules]
        for at, rule in enumerate(self.rules):
            yield from within("rules", within(at, rule.inspect()))
            if names.index(rule.name) != at:
                yield Mistake(("rules", at, "name"), f"there is already a rule {rule.name!r}")
            if rule.longest_s >= self.metrics.forget_after:
                yield Mistake(
                    ("rules", at), ("looks back longer than metrics.forget_after: increase that setting")
                )

    def run(self, run: Run) -> None:
        """Evaluate metrics, batch by batch."""
        need_pandas()
        judging = AlertEvaluator(self.name, tuple(self.rules), round(self.metrics.forget_after * 1_000))
        good = self._read(run).where(f"{REASON} IS NULL")
        run.stream(judging.alerts(good, self.metrics.late_after), self._send(run))
        run.stream(self._read(run).where(f"{REASON} IS NOT NULL"), self._send_dead, "dead-letters")
        run.wait()

    def _read(self, run: Run) -> DataFrame:
        return self.metrics.add_to(self.source.stream(run.spark, {"includeHeaders": "true"}))

    def _send(self, run: Run) -> EachBatch:
        from pyspark.sql import Observation

        def each(batch: DataFrame, batch_id: int) -> Mapping[str, int]:
            seen = Observation()
            counted = [functions.count_if(functions.col("state") == state).alias(state) for state in _STATES]
            self.alerts.write(_records(batch.observe(seen, *counted)), self.source, "alerts")
            counts = {name: int(count) for name, count in seen.get.items()}
            return counts | {"late": dropped_by_watermark(run.spark, run.query_name("main"))}

        return each

    def _send_dead(self, batch: DataFrame, batch_id: int) -> Mapping[str, int]:
        return send_dead_letters(batch, self.dead_letters, self.source, self.name)


def _records(alerts: DataFrame) -> DataFrame:
    """Return the records in a fixed order, so that a repeated batch sends the same rows in the same tasks."""
    said = {"alert-id": functions.col("id"), "alert-state": functions.col("state")}
    headers = [
        functions.struct(functions.lit(name).alias("key"), value.cast("binary").alias("value"))
        for name, value in said.items()
    ]
    in_order = alerts.repartition(1).sortWithinPartitions("at_ms", "key", "id")
    return in_order.select("key", "value", functions.array(*headers).alias("headers"))
