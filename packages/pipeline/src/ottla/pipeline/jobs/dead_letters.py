"""Records that became no rows, on their way to a topic of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from ottla.pipeline.jobs.value_parsing import REASON, Parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.state_files import StateFile

RECORD: Final = ("key", "value", "headers", "topic", "partition", "offset")
"""Columns of a record: all that a dead letter is made of."""


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


def parses_for_dead_letters(begun: StateFile, batch_id: int, parse: Parse, *, has_dead: bool) -> list[Parse]:
    """Return how the dead letters of a batch are found: as declared when they were begun, then as now.

    `has_dead` says whether there are any as it is declared now. `begun` keeps what is returned, durably,
    before anything of it is sent. Where dead letters are sent exactly once, those of a batch must come again
    as they were: which of them are sent already is known for tasks as a whole, by how many they had.
    """
    found = begun.read()
    declared = [Parse(**each) for each in found["parse"]] if found.get("batch") == batch_id else []
    if has_dead and parse not in declared:
        declared.append(parse)
        begun.write({"batch": batch_id, "parse": [each.model_dump() for each in declared]})
    return declared


def dead_letters_by(declared: Sequence[Parse], records: DataFrame, pipeline: str) -> Iterator[DataFrame]:
    """Yield the dead letters that each declaration finds among records, beyond those of the ones before."""
    from pyspark.sql import functions

    is_good = functions.col(REASON).isNull()
    left = records.select(*RECORD)
    for parse in declared:
        parsed = parse.add_to(left)
        yield dead_letters(parsed.where(~is_good), pipeline)
        left = parsed.where(is_good).select(*RECORD)
