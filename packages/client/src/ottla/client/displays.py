"""Tables that notebooks show: as HTML, in which all text is escaped, and as aligned text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 50
MOST_CHARS = 200


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under names of columns; of many rows and of long values only the start is shown."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def html(self) -> str:
        """Return the table as HTML."""
        from html import escape  # in notebooks only: its table of entities takes a millisecond

        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self._shown()
        )
        more = f"<p>{escape(self._more())}</p>" if self._more() else ""
        caption = f"<caption>{escape(self.caption)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def text(self) -> str:
        """Return the table as lines of text."""
        rows = [list(self.columns), *self._shown()]
        widths = [max(len(row[at]) for row in rows) for at in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join([self.caption, *(line.rstrip() for line in lines), *filter(None, [self._more()])])

    def _shown(self) -> list[list[str]]:
        return [[shown(value) for value in row] for row in self.rows[:MOST_ROWS]]

    def _more(self) -> str:
        left = len(self.rows) - MOST_ROWS
        return f"… and {left} more" if left > 0 else ""


def shown(value: object) -> str:
    """Return the text of a value in one line: bytes as text if they are UTF-8, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        start = value[: 4 * MOST_CHARS]
        try:
            value = start.decode()
        except UnicodeDecodeError:
            value = repr(start)
    text = " ".join(str(value).split())
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"


class Tabular:
    """Shows an object as a table in notebooks, and in IPython's terminal; subclasses have `_table`."""

    __slots__ = ()

    def _table(self) -> Table:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._table().html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self._table().text())


def record_table(caption: str, records: Sequence[Any]) -> Table:
    """Return the table of records of a consumer."""
    columns = ("partition", "offset", "time", "key", "value", "headers")
    return Table(caption, columns, _RecordRows(records))


class _RecordRows(Sequence[Sequence[object]]):
    """Rows of records, made for those that are shown."""

    def __init__(self, records: Sequence[Any]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, at: Any) -> Any:
        return (
            [_row(record) for record in self._records[at]]
            if isinstance(at, slice)
            else _row(self._records[at])
        )


def _row(record: Any) -> Sequence[object]:
    headers = ", ".join(f"{name}={shown(value)}" for name, value in record.headers)
    return record.partition, record.offset, _time(record.timestamp_ms), record.key, record.value, headers


def _time(timestamp_ms: int) -> str:
    """Return a time in UTC; nothing for records without one, and the number for one beyond the calendar."""
    from datetime import UTC, datetime, timedelta  # for displays only

    if timestamp_ms < 0:
        return ""
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return when.isoformat(" ", "milliseconds").removesuffix("+00:00")
