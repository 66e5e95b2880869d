"""Records that became no rows, on their way to a topic of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.pipeline.jobs.parsing import REASON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def dead_letters(bad: DataFrame, pipeline: str) -> DataFrame:
    """Return records as they were, with headers that say why they are here and where they were.

    The place tells a dead letter from all others: one that comes twice can be known by it.
    """
    from pyspark.sql import functions

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
