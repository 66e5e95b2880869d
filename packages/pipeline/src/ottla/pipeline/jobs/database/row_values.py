"""Rows of a database as records: values as JSON and text, and positions as JSON that keeps types. Pure."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from ottla.pipeline.jobs.database.connection import DatabaseFailed, column_of
from ottla.pipeline.lazy import sa

ID = "ottla-id"
"""The header with the id of a record. A row that is sent again after a crash has the same id."""


class Record(NamedTuple):
    """The record to send for a row."""

    topic: str
    key: bytes | None
    value: bytes | None
    id: str
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def all_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers; the id is the last one."""
        return [*self.headers, (ID, self.id.encode())]


class RecordTimes:
    """Gives each record the time in a column: a time of the database, or text with an ISO 8601 time.

    Without a column, records get none. Raises DatabaseFailed for a column whose type can hold neither.
    """

    def __init__(self, table: sa.Table, column: str | None) -> None:
        self._table = table
        self._column = column
        if column is not None:
            self._refuse_other_types(column_of(table, column))

    def of(self, row: Mapping[str, Any], row_id: str) -> int | None:
        """Return the timestamp in ms; None for null. Raises DatabaseFailed for text that is not a time."""
        if self._column is None:
            return None
        try:
            return timestamp_ms(row[self._column])
        except ValueError as error:
            raise DatabaseFailed(
                f"row {row_id} of {self._table.fullname!r}: timestamp = {self._column!r} is {error}. Correct "
                "the row, exclude it, or choose another column"
            ) from None

    def _refuse_other_types(self, column: sa.Column[Any]) -> None:
        try:
            kind = column.type.python_type
        except NotImplementedError:  # SQLAlchemy does not know: the values decide
            return
        if not issubclass(kind, date | str):
            raise DatabaseFailed(
                f"table {self._table.fullname!r}: timestamp = {self._column!r} is of type {column.type}, and "
                "must be a time, or text such as 2026-05-01T10:00:00Z"
            )


Position = tuple[Any, ...]
"""The values of the columns by which a table is followed."""


def row_json(row: Mapping[str, Any]) -> bytes:
    """Return a row as a JSON object, with its columns in order.

    Timestamps become ISO 8601, decimals and UUIDs text, bytes base64, intervals seconds; NaN and infinity
    become null because JSON does not have them.
    """
    return json.dumps(
        {name: _finite(value) for name, value in row.items()},
        default=_plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False,
    ).encode()  # fmt: skip


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case set() | frozenset() | tuple():
            return list(value)
    return str(value)


def text_of(value: Any) -> str:
    """Return a value as text, for keys, headers and ids."""
    if isinstance(value, str):
        return value
    plain = value if isinstance(value, bool | int | float | dict | list | None) else _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def bytes_of(value: Any) -> bytes | None:
    """Return a value as a record's bytes: bytes unchanged, text as UTF-8, others as JSON; null stays null."""
    if value is None:
        return None
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else text_of(value).encode()


def key_of(row: Mapping[str, Any], columns: Sequence[str]) -> bytes | None:
    """Return the key of a row: the text of a single column, a JSON object of several; null for none."""
    if not columns:
        return None
    return bytes_of(row[columns[0]]) if len(columns) == 1 else row_json({name: row[name] for name in columns})


def timestamp_ms(value: Any) -> int | None:
    """Return a timestamp in ms; without a time zone it is UTC, and a date is its midnight. Null stays null.

    Text holds an ISO 8601 time. Raises ValueError, which says what is there instead, for anything else.
    """
    match value:
        case None:
            return None
        case datetime():
            return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1_000)
        case date():
            return timestamp_ms(datetime(value.year, value.month, value.day))
        case str():
            return timestamp_ms(_time_in(value))
    raise ValueError(f"{value!r}, which is not a time")


def _time_in(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text[:80]!r}, which is not a time such as 2026-05-01T10:00:00Z") from None


def position_json(position: Position) -> list[Any]:
    """Return a position as JSON, for `position_from`."""
    return [_tagged(value) for value in position]


def position_from(found: Sequence[Any]) -> Position:
    """Return the position that `position_json` wrote."""
    return tuple(_untagged(value) for value in found)


_READERS: Mapping[str, Callable[[str], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
    "bytes": base64.b64decode,
}


def _tagged(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return {"datetime": value.isoformat()}
        case date():
            return {"date": value.isoformat()}
        case time():
            return {"time": value.isoformat()}
        case Decimal():
            return {"decimal": str(value)}
        case UUID():
            return {"uuid": str(value)}
        case bytes() | bytearray() | memoryview():
            return {"bytes": base64.b64encode(value).decode()}
    raise TypeError(f"a table cannot be followed by {type(value).__name__}, only by numbers, text and times")


def _untagged(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _READERS[kind](text)
