"""The number of rows that Spark dropped because they were older than the watermark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METRIC = "numRowsDroppedByWatermark"


def dropped_by_watermark(spark: SparkSession, query: str) -> int:
    """Return how many rows the current batch of a query dropped; call it once, when all rows are read.

    Spark reports the number too, but only after the batch, so a crash in between would lose it. Spark counts
    only rows that it drops one by one, not those of aggregated groups: the first stateful operator has to
    drop duplicates, or pass rows to a Python function.
    """
    for running in spark.streams.active:
        if running.name == query:
            plan = running._jsq.streamingQuery().lastExecution().executedPlan()
            return sum(_dropped(plan))
    raise PipelineError(f"Spark no longer has a query {query!r}")


def _dropped(plan: Any) -> Iterator[int]:
    """Yield the dropped rows of each operator of a plan."""
    metrics = plan.metrics()
    if metrics.contains(METRIC):
        yield int(metrics.apply(METRIC).value())
    children = plan.children()
    for at in range(children.size()):
        yield from _dropped(children.apply(at))
