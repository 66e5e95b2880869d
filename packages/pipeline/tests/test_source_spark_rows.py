"""Decoded columns as rows for Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipeline.errors import OptionError
from ottla.pipeline.source.spark_rows import Rows, arrow_schema, checked, column_names, ddl
from ottla.pipeline.values import Mode, ValueFormat, ValueMalformed
from ottla.protocol.topics import TopicPartition

RAW = ValueFormat()
ORDERS = TopicPartition("orders", 3)
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
VALUES = [b'{"id": 1}', None, b"x"]


def spark_schema(*value: tuple[str, DataType], headers: bool = False) -> StructType:
    fields = [
        ("key", BinaryType()), *value, ("topic", StringType()), ("partition", IntegerType()),
        ("offset", LongType()), ("timestamp", TimestampType()), ("timestampType", IntegerType()),
    ]  # fmt: skip
    return StructType(
        [StructField(*field) for field in (*fields, *([("headers", HEADERS)] if headers else []))]
    )


def decoded(values: list[bytes | None], *, headers: bool = False) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.array([b"k"] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(5, 5 + count), pa.int64()),
        "timestamp": pa.array([1_000] * count, pa.timestamp("ms", "UTC")),
        "timestamp_type": pa.array([0] * count, pa.int8()),
    }
    if headers:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns["headers"] = pa.array([[("h", b"1"), ("h", None)]] + [None] * (count - 1), kind)
    return pa.RecordBatch.from_pydict(columns)


def test_the_columns_are_those_of_spark_s_own_source() -> None:
    assert ddl(RAW, include_headers=False) == (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "timestampType INT"
    )
    assert ddl(RAW, include_headers=True).endswith(", headers ARRAY<STRUCT<key: STRING, value: BINARY>>")


@pytest.mark.parametrize("mode", ["permissive", "failfast"])
@pytest.mark.parametrize("headers", [False, True])
def test_the_names_of_columns_are_those_of_the_ddl(mode: Mode, headers: bool) -> None:
    value = ValueFormat("json", "id BIGINT", None, mode)
    text = ddl(value, include_headers=headers).replace("<key: STRING, value: BINARY>", "")

    assert tuple(part.split()[0] for part in text.split(", ")) == column_names(value, include_headers=headers)


def test_a_foreign_schema_is_rejected() -> None:
    schema = StructType([StructField("id", LongType())])

    with pytest.raises(OptionError, match=r"the columns are always key, value, topic, .*remove \.schema"):
        checked(schema, RAW, include_headers=False)


def test_rows_have_just_the_types_that_spark_wants() -> None:
    schema = arrow_schema(spark_schema(("value", BinaryType()), headers=True))
    rows = Rows(schema, RAW)

    found = rows.of(decoded([b"v", None], headers=True), ORDERS)

    assert found.schema.equals(schema)
    assert found.to_pylist() == [
        {
            "key": b"k", "value": value, "topic": "orders", "partition": 3, "offset": offset,
            "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "timestampType": 0, "headers": headers,
        }
        for value, offset, headers in (
            (b"v", 5, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]), (None, 6, None),
        )
    ]  # fmt: skip


def test_headers_are_decoded_only_where_they_are_wanted() -> None:
    with_headers = arrow_schema(spark_schema(("value", BinaryType()), headers=True))
    without = arrow_schema(spark_schema(("value", BinaryType())))

    assert "headers" in Rows(with_headers, RAW).columns
    assert "headers" not in Rows(without, RAW).columns


def json_rows(mode: Mode) -> Rows:
    inner = StructType([StructField("id", LongType())])
    extra = [("value_raw", BinaryType()), ("value_error", StringType())] if mode == "permissive" else []
    schema = arrow_schema(spark_schema(("value", inner), *extra))
    return Rows(schema, ValueFormat("json", "id BIGINT", None, mode))


def test_a_malformed_value_is_null_beside_its_bytes_and_the_reason() -> None:
    found = json_rows("permissive").of(decoded(VALUES), ORDERS).to_pylist()

    assert [row["value"] for row in found] == [{"id": 1}, None, None]
    assert [row["value_raw"] for row in found] == [None, None, b"x"]
    assert [row["value_error"] is None for row in found] == [True, True, False]


def test_the_bytes_of_malformed_values_stand_also_beside_a_part_of_a_batch() -> None:
    values: list[bytes | None] = [b"x%d" % number if number % 2 else b"{}" for number in range(100)]

    found = json_rows("permissive").of(decoded(values).slice(10, 10), ORDERS)

    found.validate(full=True)
    kept = [b"x%d" % number if number % 2 else None for number in range(10, 20)]
    assert found.column("value_raw").to_pylist() == kept


def test_where_nothing_is_malformed_the_extra_columns_are_null() -> None:
    found = json_rows("permissive").of(decoded(VALUES[:2]), ORDERS)

    assert found.column("value_raw").null_count == found.column("value_error").null_count == 2


def test_malformed_values_can_be_left_out() -> None:
    found = json_rows("dropmalformed").of(decoded(VALUES), ORDERS).to_pylist()

    assert [(row["offset"], row["value"]) for row in found] == [(5, {"id": 1}), (6, None)]


def test_a_malformed_value_can_be_an_error() -> None:
    rows = json_rows("failfast")

    assert rows.of(decoded(VALUES[:2]), ORDERS).num_rows == 2
    with pytest.raises(ValueMalformed, match=r"a value is not json of value.schema: .*value.mode=permissive"):
        rows.of(decoded(VALUES), ORDERS)
