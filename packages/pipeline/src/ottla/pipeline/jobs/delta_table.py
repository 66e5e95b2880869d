"""Delta tables that batches are added to, each in one commit that remembers it."""

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
"""Settings of tables and columns by which rows would have to be checked or made."""
_NAMES = "delta.columnMapping.mode"
"""The setting by which columns have other names in files, unless it is `none`."""


def has_delta() -> bool:
    """Whether there is what Delta tables need."""
    # Spark gives no rows to a function of ours without pandas.
    return all(find_spec(name) for name in ("deltalake", "pandas"))


def need_delta() -> Any:
    """Return the module deltalake. Raises PipelineError with how to install it."""
    if not has_delta():
        raise PipelineError("Delta tables need a library: pip install 'ottla-pipeline[delta]'")
    return import_module("deltalake")


def table_at(path: str) -> DeltaTable | None:
    """Return the table of a path; None if there is none."""
    table: type[DeltaTable] = need_delta().DeltaTable
    return table(path) if table.is_deltatable(path) else None


def table_for(batch: DataFrame, path: str, partition_by: Sequence[str]) -> DeltaTable:
    """Return the table, made if there is none. Raises PipelineError where it cannot have the rows."""
    table = table_at(path)
    if table is None:
        # Rows that are none have the same types in Arrow, and ask nothing of the batch.
        schema = batch.sparkSession.createDataFrame([], batch.schema).toArrow().schema
        table = need_delta().DeltaTable.create(
            path, schema, mode="ignore", partition_by=list(partition_by) or None
        )
    for said in unfit(table, batch.columns, partition_by):
        raise PipelineError(f"the Delta table {path} {said}")
    return table


def unfit(table: DeltaTable, columns: Sequence[str], partition_by: Sequence[str]) -> Iterator[str]:
    """Yield why files with some columns cannot be added to a table as they are."""
    fields = {field.name: field for field in table.schema().fields}
    if missing := [name for name in columns if name not in fields]:
        yield f"has no column {missing[0]!r}; there are {', '.join(fields)}. Add it, or choose another path"
    there = list(table.metadata().partition_columns)
    if partition_by and there != list(partition_by):
        yield f"is partitioned by {there}, and partition_by says {list(partition_by)}: choose another path"
    for name in _rules(table):
        yield f"has {name}, which is not looked at here: choose a table without it"


def _rules(table: DeltaTable) -> list[str]:
    settings = table.metadata().configuration
    of_columns = {name for field in table.schema().fields for name in field.metadata}
    found = {name for name in {*of_columns, *settings} if name.startswith(_RULES)}
    renamed = {_NAMES} if settings.get(_NAMES, "none") != "none" else set()
    return sorted(found | renamed)


def has_batch(table: DeltaTable | None, key: BatchKey) -> bool:
    """Whether a commit remembers a batch, or a later one of the same query."""
    done = table.transaction_version(key.app) if table is not None else None
    return done is not None and int(done) >= key.id


def written(batch: DataFrame, table: DeltaTable, path: str) -> list[AddAction]:
    """Let tasks write rows into files, and return the files: the driver never has the rows."""
    from ottla.pipeline.jobs.delta_files import FILES, layout_of, writing

    layout = layout_of(table, path)
    rows = _by_partition(batch, layout.partition_by)
    with pandas_of_any_age():
        return [_added(each) for each in rows.mapInArrow(writing(layout), FILES).collect()]


def _by_partition(batch: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the rows of each task by partition, as tasks write them; Spark sorts more than memory has."""
    there = [f"`{name.replace('`', '``')}`" for name in names if name in batch.columns]
    return batch.sortWithinPartitions(*there) if there else batch


def _added(file: Row) -> AddAction:
    """Return a file of a task as a commit names it."""
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1_000)
    return AddAction(file.path, file.size, json.loads(file.partitions), now_ms, True, file.stats)


def commit(table: DeltaTable, files: list[AddAction], key: BatchKey) -> None:
    """Make files part of the table, and let it remember their batch."""
    library = need_delta()
    remembered = library.CommitProperties(app_transactions=[library.Transaction(key.app, key.id)])
    columns = table.metadata().partition_columns
    table.create_write_transaction(files, "append", table.schema(), columns, commit_properties=remembered)
