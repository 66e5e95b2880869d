"""Queries of `ottla-log` without Spark, and their rows in the form that tests compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.data_source import tasks
from ottla.pipeline.segments.readable_logs import ByteRange
from ottla.pipeline.segments.segment_reading import read
from ottla.pipeline.source.spark_rows import Rows
from ottla.pipeline.values import ValueFormat
from peers.log_directory import Written

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
        ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)  # fmt: skip


def planned(path: Path | str, **options: str) -> list[tuple[ByteRange, ...]]:
    """Return the byte ranges of each task; `__` in an option stands for a dot."""
    settings_ = {"path": str(path)} | {name.replace("__", "."): value for name, value in options.items()}
    return tasks(SegmentsConfig.of(settings_))


def rows_of(path: Path | str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of all tasks."""
    rows = Rows(SCHEMA, ValueFormat())
    fails = options.get("failOnDataLoss", "true") == "true"
    return [
        row
        for task in planned(path, **options)
        for batch in read(task, rows, fail_on_data_loss=fails)
        for row in batch.to_pylist()
    ]


def brief(rows: list[dict[str, Any]]) -> list[tuple[int, bytes]]:
    """Return offset and value of each row."""
    return [(row["offset"], row["value"]) for row in rows]


def expected(records: list[Written]) -> list[tuple[int, bytes]]:
    """Return offset and value of each record that was written."""
    return [(each.offset, each.value) for each in records]
