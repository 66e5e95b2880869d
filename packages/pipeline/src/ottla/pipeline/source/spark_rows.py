"""Decoded record columns in the types that Spark expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import OptionError
from ottla.pipeline.lazy import pa, pc
from ottla.pipeline.options import given_options
from ottla.pipeline.source.offsets import parse_partitions
from ottla.pipeline.values import (
    RowOptions,
    ValueFormat,
    ValueMalformed,
    decode,
    value_format,
    with_columns,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

READ_COLUMNS = ("key", "value", "offset", "timestamp", "timestamp_type")
"""The decoded columns; topic and partition are constant within a task."""


def columns_of(given: Mapping[str, str]) -> str:
    """Return the schema of a read with these options. Raises OptionError."""
    options = RowOptions(**given_options(RowOptions, given, only_own=False))
    named = {name.lower(): text for name, text in given.items()}
    value = with_columns(
        value_format(options, named.get("profile")), options.value_subject or _subject(named)
    )
    return ddl(value, include_headers=options.include_headers)


def _subject(named: Mapping[str, str]) -> str | None:
    """Return the subject of the values of a topic; None if a read chooses several."""
    topics = {name.strip() for name in named.get("subscribe", "").split(",")}
    if "assign" in named:
        topics = {partition.topic for partition in parse_partitions("assign", named["assign"])}
    return f"{topics.pop()}-value" if len(topics) == 1 and "" not in topics else None


def ddl(value: ValueFormat, *, include_headers: bool) -> str:
    """Return the schema of the source: that of Spark's own Kafka source, except for a decoded value."""
    headers = ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>" if include_headers else ""
    return (
        f"key BINARY, {value.ddl}, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        f"timestampType INT{headers}"
    )


def checked(schema: StructType, value: ValueFormat, *, include_headers: bool) -> StructType:
    """Return the schema if it has the columns of the source. Raises OptionError for another one."""
    columns = column_names(value, include_headers=include_headers)
    if tuple(schema.names) != columns:
        raise OptionError(
            f"the columns are always {', '.join(columns)}: remove .schema(...); option value.schema "
            "names the fields of decoded values"
        )
    return schema


def column_names(value: ValueFormat, *, include_headers: bool) -> tuple[str, ...]:
    """Return the columns of the source, in their order."""
    headers = ("headers",) if include_headers else ()
    return (
        "key",
        *value.column_names,
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        *headers,
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark expects."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return found


class Rows:
    """Converts decoded columns of one partition to rows for Spark."""

    def __init__(self, schema: pa.Schema, value: ValueFormat) -> None:
        self._schema = schema
        self._value = value
        self._has_headers = "headers" in schema.names

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to decode; headers may name the schema of a value."""
        reads_headers = self._has_headers or self._value.registry is not None
        return (*READ_COLUMNS, "headers") if reads_headers else READ_COLUMNS

    def of(self, batch: pa.RecordBatch, partition: TopicPartition) -> pa.RecordBatch:
        """Return the rows of a batch."""
        found = self._values(batch)
        keep = found.pop("_keep", None)
        found |= {
            "key": batch.column("key"),
            "topic": pa.repeat(pa.scalar(partition.topic, pa.string()), batch.num_rows),
            "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), batch.num_rows),
            "offset": batch.column("offset"),
            "timestamp": batch.column("timestamp"),
            "timestampType": batch.column("timestamp_type"),
        }
        if self._has_headers:
            found["headers"] = _null_where_empty(batch.column("headers"))
        arrays = [_as(found[field.name], field.type) for field in self._schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return rows if keep is None else rows.filter(keep)

    def _values(self, batch: pa.RecordBatch) -> dict[str, Any]:
        values = batch.column("value")
        if self._value.kind == "raw":
            return {"value": values}
        headers = None if self._value.registry is None else batch.column("headers")
        decoded = decode(self._value, values, self._schema.field("value").type, headers)
        if decoded.errors and self._value.mode == "failfast":
            raise ValueMalformed(self._value.kind, next(error for error in decoded.errors if error))
        if self._value.mode == "dropmalformed":
            keep = [error is None for error in decoded.errors] if decoded.errors else None
            return {"value": decoded.values} | ({} if keep is None else {"_keep": pa.array(keep)})
        return {"value": decoded.values} | _wrong(values, decoded.errors)


def _wrong(values: pa.Array, errors: list[str | None] | None) -> dict[str, Any]:
    """Return the columns about malformed values."""
    if errors is None:
        count = len(values)
        return {"value_raw": pa.nulls(count, pa.binary()), "value_error": pa.nulls(count, pa.string())}
    reasons = pa.array(errors, pa.string())
    # With a null scalar, pyarrow before 24 returns offsets out of bounds for a slice.
    raw = pc.if_else(reasons.is_valid(), values, pa.nulls(len(values), values.type))
    return {"value_raw": raw, "value_error": reasons}


def _null_where_empty(headers: pa.Array) -> pa.Array:
    """Return the headers as Spark's own source has them: null instead of an empty list."""
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    return pc.if_else(is_empty, pa.scalar(None, headers.type), headers)


def _as(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a column; without a copy if only the names of list items differ."""
    return array if array.type.equals(wanted) else array.cast(wanted)
