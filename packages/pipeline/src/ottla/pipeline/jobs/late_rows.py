"""How many rows Spark dropped because they came after the watermark had passed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METRIC = "numRowsDroppedByWatermark"


def dropped_by_watermark(spark: SparkSession, query: str) -> int:
    """Return how many rows the batch that a query is at has dropped; ask when its rows were all read, once.

    Spark reports the number too, but only when the batch is over: what it says is lost where the process
    dies in between. It counts rows only where it drops them one by one, and no groups of rows that
    were added up before: the first operator with state has to be one that drops duplicates, or that
    gives rows to a function of ours.
    """
    for running in spark.streams.active:
        if running.name == query:
            plan = running._jsq.streamingQuery().lastExecution().executedPlan()
            return sum(_dropped(plan))
    raise PipelineError(f"Spark has no query {query!r} any more")


def _dropped(plan: Any) -> Iterator[int]:
    """Yield what each operator of a plan dropped."""
    metrics = plan.metrics()
    if metrics.contains(METRIC):
        yield int(metrics.apply(METRIC).value())
    children = plan.children()
    for at in range(children.size()):
        yield from _dropped(children.apply(at))
