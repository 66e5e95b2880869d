"""An outbox: a table into which applications write events in the transaction of the change they describe.

Its rows are found by being present, not by a position, so a row that commits late is found later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from ottla.pipeline.jobs.database.connection import DatabaseFailed, column_of
from ottla.pipeline.jobs.database.row_values import Record, RecordTimes, bytes_of, text_of
from ottla.pipeline.jobs.declaration import Mistake, Names, Table
from ottla.pipeline.lazy import sa

_COLUMN = re.compile(r"\{(\w+)\}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Outbox(Table):
    """A table of events to send."""

    table: str = Field(examples=["outbox"], min_length=1)
    topic: str = Field(examples=["shop.{aggregate_type}"], min_length=1)
    """The target topic; `{column}` is replaced by the value in the row."""
    id: str = "id"
    """The column that identifies an event. Events are sent in its order."""
    key: str | None = None
    """The column of the key."""
    value: str = "payload"
    """The column of the value: bytes, text, or JSON."""
    headers: Names = Field(default_factory=list)
    """Columns that become headers with their names."""
    timestamp: str | None = None
    """The column of the record's timestamp."""
    after: Literal["delete", "mark"] = "delete"
    """Whether sent events are deleted or marked."""
    sent: str = "sent_at"
    """The column that gets the time of sending, for `mark`."""
    rows_per_batch: int = Field(default=1_000, ge=1, le=10_000)

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        if not _TOPIC.fullmatch(_COLUMN.sub("x", self.topic)):
            yield Mistake(("topic",), "must be the name of a topic; {column} stands for the value in the row")

    def columns(self) -> Iterator[str]:
        """Yield the required columns."""
        yield from (self.id, self.value, *self.headers, *_COLUMN.findall(self.topic))
        yield from (column for column in (self.key, self.timestamp) if column is not None)
        if self.after == "mark":
            yield self.sent


class PendingEvents:
    """Builds the statements that select pending events and record sent ones."""

    def __init__(self, declared: Outbox, table: sa.Table) -> None:
        self._declared = declared
        self._table = table
        for name in declared.columns():
            column_of(table, name)
        self._id = table.c[declared.id]
        self._times = RecordTimes(table, declared.timestamp)

    def statement(self) -> sa.Select[Any]:
        """Return the query for the next events."""
        return (
            sa.select(self._table).where(*self._conditions())
            .order_by(self._id).limit(self._declared.rows_per_batch)
        )  # fmt: skip

    def left(self) -> sa.Select[Any]:
        """Return the query for the number of pending events."""
        return sa.select(sa.func.count()).select_from(self._table).where(*self._conditions())

    def sent(self, rows: Sequence[Mapping[str, Any]], now: datetime) -> sa.Delete | sa.Update:
        """Return the statement that records events as sent."""
        ids = [row[self._declared.id] for row in rows]
        if self._declared.after == "delete":
            return sa.delete(self._table).where(self._id.in_(ids))
        column = self._table.c[self._declared.sent]
        when = now if getattr(column.type, "timezone", False) else now.replace(tzinfo=None)
        return sa.update(self._table).where(self._id.in_(ids)).values({column: when})

    def record(self, row: Mapping[str, Any], prefix: str) -> Record:
        """Return the record of an event; its id begins with `prefix`."""
        declared = self._declared
        return Record(
            self._topic(row),
            bytes_of(row[declared.key]) if declared.key else None,
            bytes_of(row[declared.value]),
            f"{prefix}/{text_of(row[declared.id])}",
            self._times.of(row, text_of(row[declared.id])),
            tuple((name, bytes_of(row[name])) for name in declared.headers),
        )

    def _topic(self, row: Mapping[str, Any]) -> str:
        event = f"event {text_of(row[self._declared.id])} of {self._table.fullname!r}"
        for column in _COLUMN.findall(self._declared.topic):
            if row[column] is None:
                raise DatabaseFailed(
                    f"{event} has null in {column!r}, which topic = {self._declared.topic!r} needs: "
                    "correct or delete it"
                )
        name = _COLUMN.sub(lambda found: text_of(row[found[1]]), self._declared.topic)
        if not _TOPIC.fullmatch(name):
            raise DatabaseFailed(f"{event} should be sent to {name!r}, which is not the name of a topic")
        return name

    def _conditions(self) -> Iterator[sa.ColumnElement[bool]]:
        if self._declared.after == "mark":
            yield self._table.c[self._declared.sent].is_(None)
