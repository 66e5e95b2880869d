"""Records without a row: malformed ones, sent to a topic of their own, and late ones, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.value_parsing import REASON, Parse
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipeline.jobs.declaration import Topics
    from ottla.pipeline.jobs.state_files import StateFile
    from ottla.pipeline.jobs.topic_sink import TopicSink

RECORD: Final = ("key", "value", "headers", "topic", "partition", "offset")
"""The columns of a record that a dead letter is made of."""


def dead_letters(bad: DataFrame, pipeline: str) -> DataFrame:
    """Return the records with headers for the reason and the original topic, partition and offset.

    The original position identifies a dead letter, so that readers can drop a second copy.
    """
    said = {
        "dead-reason": functions.col(REASON),
        "dead-pipeline": functions.lit(pipeline),
        "dead-topic": functions.col("topic"),
        "dead-partition": functions.col("partition"),
        "dead-offset": functions.col("offset"),
    }
    headers = [
        functions.struct(functions.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in said.items()
    ]
    none = functions.array().cast("array<struct<key:string,value:binary>>")
    before = functions.coalesce("headers", none)
    return bad.select("key", "value", functions.concat(before, functions.array(*headers)).alias("headers"))


def send_dead_letters(bad: DataFrame, target: TopicSink, source: Topics, pipeline: str) -> dict[str, int]:
    """Send the malformed records of a batch, and return their count."""
    from pyspark.sql import Observation

    seen = Observation()
    letters = dead_letters(bad.observe(seen, functions.count("*").alias("dead")), pipeline)
    target.write(letters, source, "dead-letters")
    return {"dead": int(seen.get["dead"])}


def parses_for_dead_letters(begun: StateFile, batch_id: int, parse: Parse, *, has_dead: bool) -> list[Parse]:
    """Return the declarations that find a batch's dead letters: those of its first run, then today's.

    `has_dead` says whether the current declaration finds any. `begun` stores the result durably before any
    dead letter is sent. With exactly-once delivery, the dead letters of a batch must be repeated unchanged,
    because the sink knows only for a task as a whole, by its number of rows, that they are sent.
    """
    found = begun.read()
    declared = (
        [Parse(**declared_parse) for declared_parse in found["parse"]]
        if found.get("batch") == batch_id
        else []
    )
    if has_dead and parse not in declared:
        declared.append(parse)
        begun.write({"batch": batch_id, "parse": [parse.model_dump() for parse in declared]})
    return declared


def dead_letters_by(declared: Sequence[Parse], records: DataFrame, pipeline: str) -> Iterator[DataFrame]:
    """Yield the dead letters that each declaration finds, without those of the declarations before it."""
    is_good = functions.col(REASON).isNull()
    left = records.select(*RECORD)
    for parse in declared:
        parsed = parse.add_to(left)
        yield dead_letters(parsed.where(~is_good), pipeline)
        left = parsed.where(is_good).select(*RECORD)


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
