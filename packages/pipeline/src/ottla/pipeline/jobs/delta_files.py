"""Rows as files of a Delta table, written by the tasks that have the rows; whoever commits needs only names.

A file is part of the table once a commit names it. What a task wrote that failed is never named; `vacuum`
of Delta removes it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.delta_stats import Stats

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

HELD_BYTES = 64 << 20
"""What a task holds in memory before it writes, over all partitions."""
FILE_BYTES = 128 << 20
"""How large a file grows."""
OPEN_FILES = 32
"""How many files a task has open, one for each partition."""
FILES = "path string, size long, partitions string, stats string"
"""What tasks say of their files, in Spark's words."""

_FILES = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("partitions", pa.string()), ("stats", pa.string())]
)
_NULL = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]
"""The partition of a file, as Delta writes it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where files of a table go, and what they have."""

    uri: str
    schema: pa.Schema
    """All columns, those of the partition too, which files do not have."""
    partition_by: tuple[str, ...] = ()

    def columns(self) -> pa.Schema:
        """Return what is in the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def fitted(self, rows: pa.RecordBatch) -> pa.Table:
        """Return rows with the types of the table; null for columns that they do not have.

        Raises ArrowInvalid for a value that cannot be of the type, PipelineError for null where none may be.
        """
        return pa.table([self._column(rows, field) for field in self.schema], self.schema)

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        has = field.name in rows.schema.names
        column = rows.column(field.name).cast(field.type) if has else pa.nulls(rows.num_rows, field.type)
        if column.null_count and not field.nullable:
            raise PipelineError(
                f"the Delta table {self.uri} takes no null in {field.name!r}, and a row has one"
            )
        return column


def layout_of(table: DeltaTable, uri: str) -> Layout:
    """Return the layout of a table as it is now."""
    return Layout(uri, pa.schema(table.schema()), tuple(table.metadata().partition_columns))


def writing(layout: Layout) -> Any:
    """Return what a task does: it takes batches of rows, writes files, and yields what it says of them."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(write_rows(batches, layout), _FILES)

    return write


def write_rows(batches: Iterable[pa.RecordBatch], layout: Layout) -> list[dict[str, Any]]:
    """Write rows into files, with bounded memory; return what is to be said of the files."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    files = _Files(layout, PyFileSystem(DeltaStorageHandler(layout.uri)))
    for batch in batches:
        for values, rows in partitions(layout.fitted(batch), layout.partition_by):
            files.add(values, rows)
    return files.finish()


def partitions(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield rows by partition, in their order, without the columns that say which one it is."""
    if not names:
        yield (), rows
        return
    keys = [str(at) for at in range(len(names))]
    texts = [_texts(rows.column(name)) for name in names]
    numbered = pa.table([*texts, pa.array(range(rows.num_rows), pa.int64())], names=[*keys, "at"])
    groups = numbered.group_by(keys, use_threads=False).aggregate([("at", "list")])
    rows = rows.drop_columns(list(names))
    for at in range(groups.num_rows):
        yield tuple(groups[key][at].as_py() for key in keys), rows.take(groups["at_list"][at].values)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of a partition as Delta writes them: times in UTC and without a zone; empty is null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    texts = column.cast(pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


class _Files:
    """The files of a task."""

    def __init__(self, layout: Layout, store: FileSystem) -> None:
        self._layout = layout
        self._columns = layout.columns()
        self._store = store
        self._held: dict[Values, list[pa.Table]] = {}
        self._bytes: dict[Values, int] = {}
        self._open: dict[Values, _File] = {}
        self._done: list[dict[str, Any]] = []

    def add(self, values: Values, rows: pa.Table) -> None:
        """Take rows of a partition; write those of the partition with the most when too many are held."""
        self._held.setdefault(values, []).append(rows)
        self._bytes[values] = self._bytes.get(values, 0) + rows.nbytes
        while sum(self._bytes.values()) > HELD_BYTES:
            self._write(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self) -> list[dict[str, Any]]:
        """Write all that is held, and return what is to be said of all files."""
        for values in list(self._held):
            self._write(values)
        for values in list(self._open):
            self._close(values)
        return self._done

    def _write(self, values: Values) -> None:
        rows = pa.concat_tables(self._held.pop(values))
        del self._bytes[values]
        if values not in self._open:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            self._open[values] = _File(self._store, self._columns, self._name(values))
        if self._open[values].write(rows) >= FILE_BYTES:
            self._close(values)

    def _close(self, values: Values) -> None:
        path, size, stats = self._open.pop(values).close()
        partition = dict(zip(self._layout.partition_by, values, strict=True))
        self._done.append({"path": path, "size": size, "partitions": json.dumps(partition), "stats": stats})

    def _name(self, values: Values) -> str:
        named = zip(self._layout.partition_by, values, strict=True)
        folders = [f"{quote(name, safe='')}={_NULL if text is None else quote(text, safe='')}"
                   for name, text in named]  # fmt: skip
        return "/".join([*folders, f"part-{secrets.token_hex(16)}.snappy.parquet"])


class _File:
    """A Parquet file that is being written. It is there when it is closed."""

    def __init__(self, store: FileSystem, columns: pa.Schema, path: str) -> None:
        self._path = path
        self._sink = store.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._sink, columns, compression="snappy")
        self._stats = Stats(columns)

    def write(self, rows: pa.Table) -> int:
        """Write rows, and return how many bytes the file has."""
        self._writer.write_table(rows)
        self._stats.add(rows)
        return int(self._sink.tell())

    def close(self) -> tuple[str, int, str]:
        """End the file; return its path, its bytes and what the log says of its rows."""
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return self._path, size, self._stats.as_json()
