"""Files of a Delta table, written by the tasks that hold the rows; the committer needs only their names.

A file belongs to the table once a commit names it. Files of a failed task are never named; a full vacuum of
Delta removes them.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyarrow.fs import FileSystem

TEXT = 32
"""The number of characters in a bound of texts: Spark and deltalake truncate there, too."""

_LAST = "\U0010ffff"


class Stats:
    """Counts and bounds of the rows of a file that is being written."""

    def __init__(self, columns: pa.Schema) -> None:
        self._rows = 0
        self._nulls = {field.name: 0 for field in columns if not pa.types.is_nested(field.type)}
        self._bounded = [name for name in self._nulls if not _is_binary(columns.field(name).type)]
        structs = [field.name for field in columns if pa.types.is_struct(field.type)]
        self._least: dict[str, Any] = {name: {} for name in structs}
        self._most: dict[str, Any] = {name: {} for name in structs}
        self._is_bounded = True

    def add(self, rows: pa.Table) -> None:
        """Include rows of the file."""
        self._rows += rows.num_rows
        for name in self._nulls:
            self._nulls[name] += rows[name].null_count
        try:
            for name in self._bounded:
                self._widen(name, rows[name])
        except (ValueError, OverflowError):
            self._is_bounded = False

    def _widen(self, name: str, column: pa.ChunkedArray) -> None:
        if column.null_count < len(column):
            least, most = bounds(column)
            self._least[name] = min(least, self._least.get(name, least))
            self._most[name] = max(most, self._most.get(name, most))

    def as_json(self) -> str:
        """Return the statistics as JSON for the log."""
        said: dict[str, Any] = {"numRecords": self._rows, "nullCount": self._nulls}
        if self._is_bounded:
            said |= {"minValues": self._least, "maxValues": self._most}
        return _json(said)


def bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Return the lower and the upper bound of a column, as Delta's log writes them.

    The column has values. Raises ValueError or OverflowError if there is no such bound.
    """
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        raise ValueError("NaN")
    found = pc.min_max(column)
    least, most = found["min"].as_py(), found["max"].as_py()
    if isinstance(most, str):
        return least[:TEXT], _above(most)
    if isinstance(most, float):  # some readers order -0.0 below 0.0, others treat them as equal
        return _word(least or -0.0), _word(most or 0.0)
    return _word(least), _word(most)


def _above(text: str) -> str:
    """Return a short text that is not below the given one. Raises ValueError if there is none."""
    if len(text) <= TEXT:
        return text
    start = text[:TEXT].rstrip(_LAST)
    if not start:
        raise ValueError("no short text is an upper bound")
    after = ord(start[-1]) + 1
    # Half of a surrogate pair is not a character.
    return start[:-1] + chr(0xE000 if after == 0xD800 else after)


def _word(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            raise ValueError("JSON has no infinity")
        case datetime():
            # Not strftime: on Linux its %Y writes the year 1 as "1", which readers take for null.
            utc = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return utc.isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
    return value


def _json(value: Any) -> str:
    """Return JSON with all digits of decimals; a float would be rounded, possibly past the value.

    Characters are not escaped: deltalake decodes escapes from U+100000 on incorrectly.
    """
    match value:
        case dict():
            named = ", ".join(f"{_json(name)}: {_json(item)}" for name, item in value.items())
            return f"{{{named}}}"
        case Decimal():
            return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )


FILES = "path string, size long, partitions string, stats string"
"""The schema of the file descriptions that tasks return, as Spark's DDL."""

_FILES = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("partitions", pa.string()), ("stats", pa.string())]
)
_COLUMN_BYTES = 1 << 10
"""The memory that an empty column takes."""
_NULL = "__HIVE_DEFAULT_PARTITION__"

Values = tuple[str | None, ...]
"""The partition of a file, as Delta writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The amounts of data that a task handles at a time."""

    held_bytes: int = 64 << 20
    """The memory that a task fills before it writes: a row group."""
    file_bytes: int = 128 << 20
    """The size at which a file is closed; it may be larger by one row group."""


_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths and columns of a table's files."""

    uri: str
    schema: pa.Schema
    """All columns, also those of the partition, which the files do not contain."""
    partition_by: tuple[str, ...] = ()

    def columns(self) -> pa.Schema:
        """Return the columns in the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def path_of(self, values: Values) -> str:
        """Return the path of a new file of a partition."""
        named = zip(self.partition_by, values, strict=True)
        folders = [f"{quote(name, safe='')}={_NULL if text is None else quote(text, safe='')}"
                   for name, text in named]  # fmt: skip
        return "/".join([*folders, f"part-{secrets.token_hex(16)}.snappy.parquet"])

    def fitted(self, rows: pa.RecordBatch) -> pa.Table:
        """Return the rows with the column types of the table; null for missing columns.

        Raises ArrowInvalid for a value that does not fit its type, PipelineError for a forbidden null.
        """
        return pa.table([self._column(rows, field) for field in self.schema], self.schema)

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        has = field.name in rows.schema.names
        column = rows.column(field.name).cast(field.type) if has else pa.nulls(rows.num_rows, field.type)
        if column.null_count and not field.nullable:
            raise PipelineError(
                f"the Delta table {self.uri} forbids null in {field.name!r}, and a row has one"
            )
        return column


def layout_of(table: DeltaTable, uri: str) -> Layout:
    """Return the current layout of a table."""
    return Layout(uri, pa.schema(table.schema()), tuple(table.metadata().partition_columns))


def file_writing_task(layout: Layout) -> Any:
    """Return the function of a task: it takes batches of rows, writes files, yields their descriptions."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist(write_rows(batches, layout), _FILES)

    return write


def write_rows(
    batches: Iterable[pa.RecordBatch], layout: Layout, limits: Limits = _LIMITS
) -> list[dict[str, Any]]:
    """Write rows into files within bounded memory; return the descriptions of the files.

    One file is open at a time, and it is closed when the partition changes. So the rows should be sorted by
    partition: then there is one file for each partition, otherwise more.
    """
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    writer = _Writer(PyFileSystem(DeltaStorageHandler(layout.uri)), layout, limits)
    fitted = (layout.fitted(batch) for batch in batches if batch.num_rows)
    parts = (part for rows in fitted for part in partitions(rows, layout.partition_by))
    runs = groupby(parts, key=itemgetter(0))
    return [file for values, run in runs for file in writer.files(values, map(itemgetter(1), run))]


def partitions(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the rows of each partition, in order, without the partition columns."""
    if not names:
        yield (), rows
        return
    keys = [str(at) for at in range(len(names))]
    texts = [_texts(rows.column(name)) for name in names]
    numbered = pa.table([*texts, pa.array(range(rows.num_rows), pa.int64())], names=[*keys, "at"])
    groups = numbered.group_by(keys, use_threads=False).aggregate([("at", "list"), ("at", "count")])
    # One take and many slices: taking a few rows a thousand times is a hundred times slower.
    rows = rows.drop_columns(list(names)).take(pc.list_flatten(groups["at_list"]))
    ends = pc.cumulative_sum(groups["at_count"]).to_pylist()
    for at, end in enumerate(ends):
        count = groups["at_count"][at].as_py()
        yield tuple(groups[key][at].as_py() for key in keys), rows.slice(end - count, count)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return partition values as Delta writes them: times in UTC without a zone; empty text is null."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    texts = column.cast(pa.string())
    # With a null scalar, pyarrow before 24 returns offsets out of bounds for a slice.
    return pc.if_else(pc.equal(texts, ""), pa.nulls(len(texts), pa.string()), texts)


@dataclass(frozen=True, slots=True)
class _Writer:
    """The target and the limits of a task."""

    store: FileSystem
    layout: Layout
    limits: Limits

    def files(self, values: Values, parts: Iterable[pa.Table]) -> Iterator[dict[str, Any]]:
        """Write the rows of a partition; yield the description of each file."""
        file: _File | None = None
        for rows in tables_of_bytes(parts, self.limits.held_bytes):
            file = file or _File(self.store, self.layout, values)
            size = file.write(rows)
            del rows  # otherwise the next rows would be held in memory beside these
            if size >= self.limits.file_bytes:
                yield file.close()
                file = None
        if file is not None:
            yield file.close()


def tables_of_bytes(parts: Iterable[pa.Table], held_bytes: int) -> Iterator[pa.Table]:
    """Yield tables that take this much memory; the last one may take less."""
    held: list[pa.Table] = []
    size = 0
    for rows in parts:
        held.append(rows)
        size += rows.nbytes + _COLUMN_BYTES * rows.num_columns
        if size >= held_bytes:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


class _File:
    """A Parquet file that is being written. It exists once it is closed."""

    def __init__(self, store: FileSystem, layout: Layout, values: Values) -> None:
        self._partition = dict(zip(layout.partition_by, values, strict=True))
        self._path = layout.path_of(values)
        self._sink = store.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._sink, layout.columns(), compression="snappy")
        self._stats = Stats(layout.columns())

    def write(self, rows: pa.Table) -> int:
        """Write rows and return the bytes of the file so far."""
        self._writer.write_table(rows)
        self._stats.add(rows)
        return int(self._sink.tell())

    def close(self) -> dict[str, Any]:
        """Close the file and return its description."""
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        partition, stats = json.dumps(self._partition), self._stats.as_json()
        return {"path": self._path, "size": size, "partitions": partition, "stats": stats}
