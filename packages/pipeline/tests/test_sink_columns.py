"""Columns of rows as columns of records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import RowsUnfit
from ottla.pipeline.sink.tasks import Columns

TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "DATE": DateType(),
    "TIMESTAMP": TimestampType(),
    "HEADERS": ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}


def config(**options: str) -> SinkConfig:
    return SinkConfig.of({"kafka.bootstrap.servers": "127.0.0.1:9092", **options})


def columns(written: str, **options: str) -> Columns:
    """Check columns given as DDL, which otherwise only a running Spark parses."""
    schema = StructType()
    for each in written.split(", "):
        name, kind = each.split()
        schema.add(name, TYPES[kind])
    return Columns.of(schema, config(**options))


def test_columns_of_records_are_taken_and_others_left_out() -> None:
    found = columns(
        "key STRING, value BINARY, topic STRING, partition INT, headers HEADERS, more INT, timestamp DATE"
    )

    assert found == Columns(("key", "value", "headers", "partition"), None)


def test_the_option_wins_over_the_column() -> None:
    found = columns("topic INT, value STRING", topic="orders")

    assert found == Columns(("value",), "orders")


def test_timestamps_are_taken_when_asked_for() -> None:
    found = columns("value STRING, timestamp TIMESTAMP", topic="orders", includeTimestamps="true")

    assert found.names == ("value", "timestamp")


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("key STRING, topic STRING", {}, "no column 'value', which each record needs; the columns are key"),
        ("value STRING", {}, "no topic is given"),
        ("value INT", {"topic": "t"}, "column 'value' must be binary or string, not int"),
        ("value STRING, key BIGINT", {"topic": "t"}, "column 'key' must be binary or string, not bigint"),
        ("value STRING, topic INT", {}, "column 'topic' must be string, not int"),
        ("value STRING, partition BIGINT", {"topic": "t"}, "column 'partition' must be int, not bigint"),
        ("value STRING, headers STRING", {"topic": "t"}, "column 'headers' must be array<struct<key:string"),
        ("value STRING", {"topic": "t", "includeTimestamps": "true"}, "needs a column 'timestamp'"),
        ("value STRING, timestamp DATE", {"topic": "t", "includeTimestamps": "true"}, "not date"),
    ],
)
def test_rows_that_cannot_become_records_are_refused(ddl: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(RowsUnfit) as caught:
        columns(ddl, **options)

    assert message in str(caught.value)


def cut(rows: pa.RecordBatch, **options: str) -> list[tuple[str, list[Any]]]:
    found = columns("value STRING, topic STRING", **options)
    return [
        (topic, some.column("value").to_pylist()) for topic, some in found.by_topic(found.records(rows), rows)
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc")))
def test_rows_go_to_their_topics_in_their_order(topics: list[str]) -> None:
    values = [str(number) for number in range(len(topics))]
    rows = pa.record_batch({"value": pa.array(values, pa.string()), "topic": pa.array(topics, pa.string())})

    found = dict(cut(rows))

    assert found == {
        name: [value for value, topic in zip(values, topics, strict=True) if topic == name]
        for name in set(topics)
    }


def test_with_the_option_rows_stay_together() -> None:
    rows = pa.record_batch({"value": ["1", "2"], "topic": ["a", "b"]})

    assert cut(rows, topic="all") == [("all", ["1", "2"])]


def test_a_row_without_a_topic_has_nowhere_to_go() -> None:
    rows = pa.record_batch({"value": ["1", "2"], "topic": ["a", None]})

    with pytest.raises(RowsUnfit, match="1 rows have a null in column 'topic'"):
        cut(rows)
