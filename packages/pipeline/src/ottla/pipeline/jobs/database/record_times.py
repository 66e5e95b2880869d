"""The timestamps of records, from a column of a table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any

from ottla.pipeline.jobs.database.connection import DatabaseFailed, column_of
from ottla.pipeline.jobs.database.row_values import timestamp_ms

if TYPE_CHECKING:
    import sqlalchemy as sa


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
