"""Delta tables that batches are appended to, each in one commit that records it."""

from __future__ import annotations

import json
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.spark import pandas_of_any_age

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, Row

    from ottla.pipeline.jobs.state_files import BatchKey

_RULES = (
    "delta.constraints.",
    "delta.invariants",
    "delta.generationExpression",
    "delta.identity.",
)
"""Settings of tables and columns under which rows would have to be checked or computed."""
_NAMES = "delta.columnMapping.mode"
"""The setting by which columns have other names in files, unless it is `none`."""


def has_delta() -> bool:
    """Whether the libraries for Delta tables are installed."""
    # Without pandas, Spark passes no rows to a Python function.
    return all(find_spec(name) for name in ("deltalake", "pandas"))


def need_delta() -> Any:
    """Return the module deltalake. Raises PipelineError with an install command."""
    if not has_delta():
        raise PipelineError("Delta tables need a library: pip install 'ottla-pipeline[delta]'")
    return import_module("deltalake")


def table_at(path: str) -> DeltaTable | None:
    """Return the table at a path; None if there is none."""
    table: type[DeltaTable] = need_delta().DeltaTable
    return table(path) if table.is_deltatable(path) else None


def table_for(batch: DataFrame, path: str, partition_by: Sequence[str]) -> DeltaTable:
    """Return the table, created if it does not exist. Raises PipelineError if it cannot hold the rows."""
    table = table_at(path)
    if table is None:
        # A frame without rows has the same Arrow types, and does not compute the batch.
        schema = batch.sparkSession.createDataFrame([], batch.schema).toArrow().schema
        table = need_delta().DeltaTable.create(
            path, schema, mode="ignore", partition_by=list(partition_by) or None
        )
    for said in reasons_against(table, batch.columns, partition_by):
        raise PipelineError(f"the Delta table {path} {said}")
    return table


def reasons_against(table: DeltaTable, columns: Sequence[str], partition_by: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why files with these columns cannot be appended to a table."""
    fields = {field.name: field for field in table.schema().fields}
    if missing := [name for name in columns if name not in fields]:
        yield (
            f"has no column {missing[0]!r}; the columns are {', '.join(fields)}. Add it, or choose "
            "another path"
        )
    there = list(table.metadata().partition_columns)
    if partition_by and there != list(partition_by):
        yield f"is partitioned by {there}, but partition_by is {list(partition_by)}: choose another path"
    for name in _rules(table):
        yield f"has {name}, which this pipeline does not support: choose a table without it"


def _rules(table: DeltaTable) -> list[str]:
    settings = table.metadata().configuration
    of_columns = {name for field in table.schema().fields for name in field.metadata}
    found = {name for name in {*of_columns, *settings} if name.startswith(_RULES)}
    renamed = {_NAMES} if settings.get(_NAMES, "none") != "none" else set()
    return sorted(found | renamed)


def has_batch(table: DeltaTable | None, key: BatchKey) -> bool:
    """Whether a commit records this batch or a later one of the same query."""
    done = table.transaction_version(key.app) if table is not None else None
    return done is not None and int(done) >= key.id


def written(batch: DataFrame, table: DeltaTable, path: str) -> list[AddAction]:
    """Let tasks write rows into files, and return the files: the rows never reach the driver."""
    from ottla.pipeline.jobs.delta_files import FILES, file_writing_task, layout_of

    layout = layout_of(table, path)
    rows = _by_partition(batch, layout.partition_by)
    with pandas_of_any_age():
        return [_added(each) for each in rows.mapInArrow(file_writing_task(layout), FILES).collect()]


def _by_partition(batch: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the rows of each task sorted by partition; Spark's sort may exceed memory."""
    there = [f"`{name.replace('`', '``')}`" for name in names if name in batch.columns]
    return batch.sortWithinPartitions(*there) if there else batch


def _added(file: Row) -> AddAction:
    """Return a task's file as a commit names it."""
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1_000)
    return AddAction(file.path, file.size, json.loads(file.partitions), now_ms, True, file.stats)


def commit(table: DeltaTable, files: list[AddAction], key: BatchKey) -> None:
    """Append files to the table in a commit that records their batch."""
    library = need_delta()
    remembered = library.CommitProperties(app_transactions=[library.Transaction(key.app, key.id)])
    columns = table.metadata().partition_columns
    table.create_write_transaction(files, "append", table.schema(), columns, commit_properties=remembered)
