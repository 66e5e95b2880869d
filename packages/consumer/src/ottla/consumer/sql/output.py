"""Results of queries as text or files, written batch by batch: a table, CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet

from ottla.client.commands import shortened

_WIDTH_ROWS: Final = 1_000
"""The rows that decide how wide the columns of a table are."""
_CELL: Final = 60
_GROUP_ROWS: Final = 65_536

Rows = Iterable[pa.RecordBatch]
Write = Callable[[pa.Schema, Rows, IO[bytes]], int]
"""Writes batches to a binary file, and returns the number of rows."""


def write_table(schema: pa.Schema, batches: Rows, out: IO[bytes]) -> int:
    """Write columns that are as wide as their first thousand rows; long cells are cut."""
    rows, count = _texts(schema, batches), 0
    first = [row for _, row in zip(range(_WIDTH_ROWS), rows, strict=False)]
    names = [shortened(name, _CELL) for name in schema.names]
    widths = [max(map(len, column)) for column in zip(names, *first, strict=True)]
    numeric = [_is_number(found.type) for found in schema]

    def line(row: Sequence[str]) -> bytes:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        return ("  ".join(cells).rstrip() + "\n").encode()

    out.write(line(names))
    for found in (first, rows):
        for row in found:
            out.write(line(row))
            count += 1
    return count


def _texts(schema: pa.Schema, batches: Rows) -> Iterator[list[str]]:
    for columns in _in_words("SELECT CAST(COLUMNS(*) AS VARCHAR) FROM batch", schema, batches):
        for row in zip(*columns, strict=True):
            yield ["-" if cell is None else shortened(cell, _CELL) for cell in row]


def write_csv(schema: pa.Schema, batches: Rows, out: IO[bytes], *, header: bool = True) -> int:
    """Write a line of names, unless there is one already, and a line for each row; NULL is empty."""
    count = 0
    text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(schema.names)
    for columns in _in_words("SELECT CAST(COLUMNS(*) AS VARCHAR) FROM batch", schema, batches):
        rows = list(zip(*columns, strict=True))
        writer.writerows(rows)
        count += len(rows)
    text.detach()
    return count


def write_json(schema: pa.Schema, batches: Rows, out: IO[bytes]) -> int:
    """Write a JSON object for each row, in a line of its own."""
    count = 0
    for (lines,) in _in_words("SELECT CAST(to_json(batch) AS VARCHAR) FROM batch", schema, batches):
        out.write("".join(f"{line}\n" for line in lines).encode())
        count += len(lines)
    return count


def write_parquet(schema: pa.Schema, batches: Rows, out: IO[bytes]) -> int:
    """Write a Parquet file, compressed with zstd."""
    count, waiting = 0, list[pa.RecordBatch]()
    with pyarrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in batches:
            waiting.append(batch)
            count += batch.num_rows
            if sum(found.num_rows for found in waiting) >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        writer.write_table(pa.Table.from_batches(waiting, schema))
    return count


WRITERS: Final[dict[str, Write]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
}


def _in_words(sql: str, schema: pa.Schema, batches: Rows) -> Iterator[list[list[Any]]]:
    """Yield the columns of batches as texts that DuckDB makes: it knows how each of its types is written."""
    with duckdb.connect(config={"enable_external_access": "false", "threads": 1}) as words:
        for batch in batches:
            words.register("batch", pa.Table.from_batches([batch], schema))
            made = words.sql(sql).to_arrow_table()
            yield [column.to_pylist() for column in made.columns]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
