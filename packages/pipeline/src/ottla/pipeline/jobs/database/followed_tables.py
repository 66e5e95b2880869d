"""Followed tables and outboxes: their new rows become records.

Rows of a followed table come in the order of the columns by which it is followed. Databases assign ids before
transactions commit, so row 5 may become visible after row 6. A reader that only asks for ids above 6 never
sees it. So ids below the position that were not seen are queried again while they are near. Most of them
belong to transactions that were rolled back, and never appear.

Applications write events into an outbox in the transaction of the change they describe. Its rows are found by
being present, not by a position, so a row that commits late is found later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

from pydantic import Field

from ottla.pipeline.jobs.database.connection import DatabaseFailed, column_of
from ottla.pipeline.jobs.database.row_values import (
    Position,
    Record,
    RecordTimes,
    bytes_of,
    key_of,
    position_from,
    position_json,
    row_json,
    text_of,
)
from ottla.pipeline.jobs.declaration import Mistake, Names, Seconds, Table
from ottla.pipeline.lazy import sa

_COLUMN = re.compile(r"\{(\w+)\}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class SeenNumbers:
    """The last id that was seen, and the gaps below it."""

    last: int | None = None
    gaps: tuple[int, ...] = ()
    """Ids below `last` that were not seen, ascending."""

    def after(self, seen: Iterable[int], overlap: int) -> SeenNumbers:
        """Return the state after these ids were seen too; drop gaps more than `overlap` below the last id."""
        numbers = sorted(set(seen))
        if not numbers:
            return self
        last = numbers[-1] if self.last is None else max(self.last, numbers[-1])
        # The first row that is seen may have been overtaken too; databases count from 1.
        begin = min(1, numbers[0]) if self.last is None else self.last + 1
        lowest = last - overlap
        new = set(range(max(begin, lowest), last)) if overlap else set()
        left = (new | set(self.gaps)) - set(numbers)
        return SeenNumbers(last, tuple(sorted(gap for gap in left if gap >= lowest)))


class FollowedTable(Table):
    """A table whose new rows become records."""

    table: str = Field(examples=["orders"], min_length=1)
    """A table or a view; `schema.table` names the schema."""
    topic: str | None = None
    """The target topic; default: the name of the table."""
    follow: Names = Field(examples=[["id"]], min_length=1)
    """Columns that only grow: an integer, or a time followed by a unique number or text."""
    key: Names = Field(default_factory=list)
    """The columns of the record's key; default: the last one of `follow`."""
    columns: Names = Field(default_factory=list)
    """The columns of the record's value; default: all."""
    where: str | None = None
    """A condition in the database's SQL; rows for which it is not true are skipped."""
    timestamp: str | None = None
    """The column of the record's timestamp."""
    overlap: int = Field(default=1_000, ge=0)
    """How far below the last id gaps are queried again: see `gaps`."""
    delay: Seconds | None = None
    """The minimum age of a row in a table that is followed by a time, because an earlier one may commit
    later. Default: five seconds."""
    rows_per_batch: int = Field(default=1_000, ge=1)

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        if len(set(self.follow)) < len(self.follow):
            yield Mistake(("follow",), "names a column twice")

    @property
    def to_topic(self) -> str:
        """The target topic."""
        return self.topic or self.table.rpartition(".")[2]


USUAL_DELAY_S = 5.0


class Follower:
    """Builds the statements that select new rows, and tracks the position.

    Raises DatabaseFailed for columns with which rows could be lost.
    """

    def __init__(self, declared: FollowedTable, table: sa.Table, saved: Mapping[str, Any]) -> None:
        self._declared = declared
        self._table = table
        self._follow = [column_of(table, name) for name in declared.follow]
        chosen = declared.columns or list(table.c.keys())
        self._chosen = [column_of(table, name).name for name in chosen]
        self._keys = [column_of(table, name).name for name in declared.key or declared.follow[-1:]]
        self._overlap = declared.overlap if self._is_numbered() else 0
        self._refuse_other_columns(saved)
        self._position: Position | None = position_from(saved["place"]) if "place" in saved else None
        self._gaps: tuple[int, ...] = tuple(saved.get("holes", ()))
        self._times = RecordTimes(table, declared.timestamp)
        self._delay_s = self._chosen_delay_s()
        self._refuse_time_alone()

    def state(self) -> dict[str, Any]:
        """Return the position as JSON."""
        if self._position is None:
            return {}
        position = {"follow": list(self._declared.follow), "place": position_json(self._position)}
        return position | ({"holes": list(self._gaps)} if self._gaps else {})

    def statement(self, now: datetime) -> sa.Select[Any]:
        """Return the query for the next rows."""
        found = sa.select(self._table).order_by(*self._follow).limit(self._declared.rows_per_batch)
        return found.where(*self._conditions(now))

    def left(self, now: datetime) -> sa.Select[Any]:
        """Return the query for the number of remaining rows."""
        return sa.select(sa.func.count()).select_from(self._table).where(*self._conditions(now))

    def records(self, rows: Sequence[Mapping[str, Any]], prefix: str) -> list[Record]:
        """Convert rows to records; their ids begin with `prefix`."""
        return [self._record(row, prefix) for row in rows]

    def advance(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Move the position behind rows that were sent."""
        if not rows:
            return
        positions = [self._position_of(row) for row in rows]
        if self._overlap:
            before = SeenNumbers(self._position[0] if self._position else None, self._gaps)
            after = before.after((position[0] for position in positions), self._overlap)
            self._position, self._gaps = (after.last,), after.gaps
        else:
            self._position = positions[-1]

    def _conditions(self, now: datetime) -> Iterator[sa.ColumnElement[bool] | sa.TextClause]:
        if self._position is not None:
            later = _later(self._follow, self._position)
            yield sa.or_(later, self._follow[0].in_(self._gaps)) if self._gaps else later
        if self._delay_s is not None:
            yield self._follow[0] <= self._settled(now, self._delay_s)
        if self._declared.where is not None:
            yield sa.text(f"({self._declared.where})")

    def _chosen_delay_s(self) -> float | None:
        declared = self._declared
        if _type(self._follow[0]) is datetime:
            return USUAL_DELAY_S if declared.delay is None else declared.delay
        if declared.delay is not None:
            raise DatabaseFailed(
                f"table {self._table.fullname!r} has a delay, but {declared.follow[0]!r}, by which "
                "it is followed, is not a time: remove delay; for numbers use overlap"
            )
        return None

    def _refuse_other_columns(self, saved: Mapping[str, Any]) -> None:
        """Reject a stored position of other columns, which cannot be compared with rows."""
        now = self._declared.follow
        before = saved.get("follow", now)
        if before != now or len(saved.get("place", now)) != len(now):
            were = before if before != now else "other columns"
            raise DatabaseFailed(
                f"table {self._table.fullname!r} is followed by {now}, but its position in the "
                f"checkpoint belongs to {were}: restore follow, or use another checkpoint, with "
                "which the pipeline sends all rows once more"
            )

    def _refuse_time_alone(self) -> None:
        last = self._follow[-1]
        if _type(last) in (datetime, date):
            raise DatabaseFailed(
                f"table {self._table.fullname!r} is followed by the time {last.name!r} alone, so "
                f"rows with equal times could be lost: add a unique column, follow = ['{last.name}', "
                "'id']"
            )

    def _settled(self, now: datetime, delay_s: float) -> datetime:
        until = now - timedelta(seconds=delay_s)
        return until if getattr(self._follow[0].type, "timezone", False) else until.replace(tzinfo=None)

    def _record(self, row: Mapping[str, Any], prefix: str) -> Record:
        position = "/".join(text_of(value) for value in self._position_of(row))
        when = self._times.of(row, position)
        value = row_json({name: row[name] for name in self._chosen})
        return Record(self._declared.to_topic, key_of(row, self._keys), value, f"{prefix}/{position}", when)

    def _position_of(self, row: Mapping[str, Any]) -> Position:
        position = tuple(row[column.name] for column in self._follow)
        if None in position:
            raise DatabaseFailed(
                f"table {self._table.fullname!r} has a row with null in {self._declared.follow}, by "
                "which it is followed: exclude such rows with where, or follow other columns"
            )
        return position

    def _is_numbered(self) -> bool:
        return len(self._follow) == 1 and _type(self._follow[0]) is int


def _type(column: sa.Column[Any]) -> type | None:
    """Return the Python type of a column's values; None if SQLAlchemy does not know it."""
    try:
        return column.type.python_type
    except NotImplementedError:
        return None


def _later(columns: Sequence[sa.Column[Any]], position: Position) -> sa.ColumnElement[bool]:
    """Return the condition for rows behind a position, spelled out since not all databases compare tuples."""
    first, value = columns[0], position[0]
    greater: sa.ColumnElement[bool] = first > value
    if len(columns) == 1:
        return greater
    return sa.or_(greater, sa.and_(first == value, _later(columns[1:], position[1:])))


def now_utc() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


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
