"""Files of records: CSV, JSON Lines and Parquet, written part by part.

Cells of CSV that a spreadsheet would run as a formula begin with an apostrophe. Bytes that are no text are
written as base64, and a column says so. Parquet holds all bytes as they are.
"""

from __future__ import annotations

import csv
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import RawIOBase, StringIO
from typing import Any, Final, Protocol

from ottla.console.records.reading import ShownRecord

FORMATS: Final[Mapping[str, str]] = {
    "csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}  # fmt: skip
"""The formats with their media types."""
MOST_EXPORTED: Final = 1_000_000
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
_COLUMNS: Final = (
    "partition", "offset", "time", "time_ms", "kind", "key", "key_form", "value", "value_form", "headers",
)  # fmt: skip
_ROW_GROUP_BYTES: Final = 8 << 20
_ROW_GROUP_ROWS: Final = 20_000


class FormatMissing(ValueError):
    """A format needs a package that is not installed."""


class RecordWriter(Protocol):
    """Writes records into a file of one format; each call returns the bytes that are finished."""

    def add(self, records: Iterable[ShownRecord]) -> bytes:
        """Write records."""
        ...

    def end(self) -> bytes:
        """Finish the file."""
        ...


def record_writer(file_format: str) -> RecordWriter:
    """Return a writer of a format. Raises FormatMissing."""
    writers: Mapping[str, type[RecordWriter]] = {"csv": CsvWriter, "jsonl": JsonLinesWriter}
    return ParquetWriter() if file_format == "parquet" else writers[file_format]()


def safe_cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def text_of(data: bytes | None) -> tuple[str, str]:
    """Return bytes as text, and its form: text, base64 or null."""
    if data is None:
        return "", "null"
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return b64encode(data).decode(), "base64"


def iso_time(timestamp_ms: int) -> str:
    """Return a time in UTC as ISO 8601; an empty text where no date has it."""
    try:
        at = datetime.fromtimestamp(timestamp_ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{at:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1_000:03}Z" if timestamp_ms >= 0 else ""


def _headers(record: ShownRecord) -> list[list[str | None]]:
    """Return name, value and form of each header."""
    return [[name.encode(errors="replace").decode(), *text_of(value)] for name, value in record.headers]


class CsvWriter:
    """Writes CSV with a row of names (RFC 4180)."""

    def __init__(self) -> None:
        self._text = StringIO()
        self._rows = csv.writer(self._text)
        self._rows.writerow(_COLUMNS)

    def add(self, records: Iterable[ShownRecord]) -> bytes:
        """Write records."""
        self._rows.writerows(map(_cells, records))
        return self._taken()

    def end(self) -> bytes:
        """Return that which is left."""
        return self._taken()

    def _taken(self) -> bytes:
        found = self._text.getvalue().encode()
        self._text.seek(0)
        self._text.truncate()
        return found


def _cells(record: ShownRecord) -> Sequence[object]:
    (key, key_form), (value, value_form) = text_of(record.key), text_of(record.value)
    headers = json.dumps(_headers(record), ensure_ascii=False) if record.headers else ""
    return (
        record.partition, record.offset, iso_time(record.timestamp_ms), record.timestamp_ms, record.fate,
        safe_cell(key), key_form, safe_cell(value), value_form, headers,
    )  # fmt: skip


class JsonLinesWriter:
    """Writes one JSON object in each line; values are texts, so that their numbers keep all digits."""

    def add(self, records: Iterable[ShownRecord]) -> bytes:
        """Write records."""
        return b"".join(
            json.dumps(_object(record), ensure_ascii=False).encode() + b"\n" for record in records
        )

    def end(self) -> bytes:
        """Return nothing: each line is whole."""
        return b""


def _object(record: ShownRecord) -> dict[str, object]:
    (key, key_form), (value, value_form) = text_of(record.key), text_of(record.value)
    return {
        "partition": record.partition, "offset": record.offset, "time": iso_time(record.timestamp_ms),
        "time_ms": record.timestamp_ms, "kind": record.fate,
        "key": None if record.key is None else key, "key_form": key_form,
        "value": None if record.value is None else value, "value_form": value_form,
        "headers": _headers(record),
    }  # fmt: skip


class ParquetWriter:
    """Writes Parquet with pyarrow, in groups of rows of a bounded size."""

    def __init__(self) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise FormatMissing("Parquet needs pyarrow: pip install 'ottla-console[parquet]'") from None
        self._arrow: Any = pyarrow
        self._sink = _Sink()
        self._schema = _schema(pyarrow)
        self._file: Any = pyarrow.parquet.ParquetWriter(self._sink, self._schema, compression="zstd")
        self._rows: list[dict[str, object]] = []
        self._bytes = 0

    def add(self, records: Iterable[ShownRecord]) -> bytes:
        """Gather records, and write them once they are a group."""
        for record in records:
            self._rows.append(_row(record))
            self._bytes += len(record.value or b"") + len(record.key or b"")
            if self._bytes >= _ROW_GROUP_BYTES or len(self._rows) >= _ROW_GROUP_ROWS:
                self._write_group()
        return self._sink.taken()

    def end(self) -> bytes:
        """Write the last group, and the end of the file."""
        if self._rows:
            self._write_group()
        self._file.close()
        return self._sink.taken()

    def _write_group(self) -> None:
        self._file.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._bytes = [], 0


def _schema(pyarrow: Any) -> Any:
    header = pyarrow.struct([("name", pyarrow.string()), ("value", pyarrow.binary())])
    return pyarrow.schema([
        ("partition", pyarrow.int32()), ("offset", pyarrow.int64()),
        ("time", pyarrow.timestamp("ms", tz="UTC")), ("kind", pyarrow.string()), ("key", pyarrow.binary()),
        ("value", pyarrow.binary()), ("headers", pyarrow.list_(header)),
    ])  # fmt: skip


def _row(record: ShownRecord) -> dict[str, object]:
    headers = [
        {"name": name.encode(errors="replace").decode(), "value": data} for name, data in record.headers
    ]
    return {
        "partition": record.partition, "offset": record.offset, "time": record.timestamp_ms,
        "kind": record.fate, "key": record.key, "value": record.value, "headers": headers,
    }  # fmt: skip


class _Sink(RawIOBase):
    """A file that is only written; `taken` returns the bytes since the last call."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def taken(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found
