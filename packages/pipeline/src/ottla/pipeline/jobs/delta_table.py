"""Delta tables that batches are appended to, each in one commit that records it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.spark import pandas_of_any_age

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, Row

    from ottla.pipeline.jobs.state_files import BatchKey

Shape = str | tuple[Any, ...]
"""A Delta type without the facts that rows leave open: whether elements and fields may be null."""

_OF_DDL = {
    "STRING": "string", "BOOLEAN": "boolean", "TINYINT": "byte", "SMALLINT": "short", "INT": "integer",
    "BIGINT": "long", "FLOAT": "float", "DOUBLE": "double", "BINARY": "binary", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP_NTZ": "timestamp_ntz",
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", re.IGNORECASE)


def shape_of(kind: Any) -> Shape:
    """Return the shape of a type of the library deltalake."""
    if kind.type == "array":
        return "array", shape_of(kind.element_type)
    if kind.type == "map":
        return "map", shape_of(kind.key_type), shape_of(kind.value_type)
    if kind.type == "struct":
        return "struct", *((field.name, shape_of(field.type)) for field in kind.fields)
    return str(kind.type)


def shapes_of(schema: Any) -> dict[str, Shape]:
    """Return the shape of each column of a schema of the library deltalake."""
    return {field.name: shape_of(field.type) for field in schema.fields}


def shape_of_ddl(kind: str) -> Shape | None:
    """Return the shape of a declared type; None for nested ones, which only Spark can read."""
    if found := _DECIMAL.fullmatch(kind.strip()):
        return f"decimal({found[1]},{found[2] or 0})"
    return _OF_DDL.get(kind)


def other_types(there: Mapping[str, Shape], given: Mapping[str, Shape | None]) -> Iterator[tuple[str, str]]:
    """Yield the columns that have another type in the table, and the mistake. None: the type is unknown."""
    for name, shape in given.items():
        if shape is not None and name in there and there[name] != shape:
            yield name, f"has {name!r} as {_shown(there[name])}, and the rows have it as {_shown(shape)}"


def _shown(shape: Shape) -> str:
    if isinstance(shape, str):
        return shape
    if shape[0] == "struct":
        return f"struct<{', '.join(f'{name}: {_shown(inner)}' for name, inner in shape[1:])}>"
    return f"{shape[0]}<{', '.join(_shown(inner) for inner in shape[1:])}>"


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


def table_for(
    batch: DataFrame, path: str, partition_by: Sequence[str], *, adds_columns: bool = False
) -> DeltaTable:
    """Return the table, created if it does not exist. Raises PipelineError if it cannot hold the rows.

    With `adds_columns` the table gets the columns that only the rows have.
    """
    # A frame without rows has the same Arrow types, and does not compute the batch.
    arrow = batch.sparkSession.createDataFrame([], batch.schema).toArrow().schema
    table = table_at(path)
    if table is None:
        table = need_delta().DeltaTable.create(
            path, arrow, mode="ignore", partition_by=list(partition_by) or None
        )
    rows = need_delta().Schema.from_arrow(arrow)
    for said in reasons_against(table, shapes_of(rows), partition_by, adds_columns=adds_columns):
        raise PipelineError(f"the Delta table {path} {said}")
    if new := missing_columns(table, [field.name for field in rows.fields]):
        fields = [field for field in rows.fields if field.name in new]
        # Rows that are there already have no value.
        table.alter.add_columns(
            [need_delta().Field(field.name, field.type, nullable=True) for field in fields]
        )
    return table


def missing_columns(table: DeltaTable, columns: Iterable[str]) -> list[str]:
    """Return the columns that a table does not have."""
    there = {field.name for field in table.schema().fields}
    return [name for name in columns if name not in there]


def reasons_against(
    table: DeltaTable,
    columns: Mapping[str, Shape | None],
    partition_by: Sequence[str],
    *,
    adds_columns: bool = False,
) -> Iterator[str]:
    """Yield the reasons why files with these columns and types cannot be appended to a table."""
    yield from (said for _, said in column_clashes(table, columns, adds_columns=adds_columns))
    there = list(table.metadata().partition_columns)
    if partition_by and there != list(partition_by):
        yield f"is partitioned by {there}, but partition_by is {list(partition_by)}: choose another path"
    for name in _rules(table):
        yield f"has {name}, which this pipeline does not support: choose a table without it"


def column_clashes(
    table: DeltaTable, columns: Mapping[str, Shape | None], *, adds_columns: bool
) -> Iterator[tuple[str, str]]:
    """Yield the columns that a table lacks or has with another type, and the mistake: no value is cast."""
    there = shapes_of(table.schema())
    if not adds_columns:
        for name in missing_columns(table, columns):
            yield (
                name,
                f"has no column {name!r}; the columns are {', '.join(there)}. "
                'schema = "merge" adds it; or choose another path',
            )
    for name, said in other_types(there, columns):
        yield name, f"{said}: declare the type of the table, or choose another path"


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
    """Write rows into files in tasks, and return the files: the rows never reach the driver."""
    from ottla.pipeline.jobs.delta_files import FILES, file_writing_task, layout_of

    layout = layout_of(table, path)
    rows = _by_partition(batch, layout.partition_by)
    with pandas_of_any_age():
        return [_added(file) for file in rows.mapInArrow(file_writing_task(layout), FILES).collect()]


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
