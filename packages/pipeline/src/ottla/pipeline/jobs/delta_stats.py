"""File statistics of Delta's log, by which readers skip files.

Two behaviours of readers would lose rows, and this module avoids both:

- deltalake's pyarrow dataset treats a missing bound among others as one that nothing satisfies. So a file has
  bounds for every column that may have them, or none at all, and then it is always read.
- A value beyond a bound is hidden. NaN is beyond every value in SQL and beyond none in Arrow, JSON has no
  infinity, and some years do not have four digits: files with such a value have no bounds.

Readers skip no file because of binary, list or map columns: those need no bounds. A struct must be present,
and it is, without bounds of its fields. (Delta's protocol, "Per-file Statistics".)
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TEXT = 32
"""The number of characters in a bound of texts: Spark and deltalake truncate there, too."""

_LAST = "\U0010ffff"


class Stats:
    """Counts and bounds of the rows of a file that is being written."""

    def __init__(self, columns: pa.Schema) -> None:
        self._rows = 0
        self._nulls = {each.name: 0 for each in columns if not pa.types.is_nested(each.type)}
        self._bounded = [name for name in self._nulls if not _is_binary(columns.field(name).type)]
        structs = [each.name for each in columns if pa.types.is_struct(each.type)]
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
            named = ", ".join(f"{_json(name)}: {_json(each)}" for name, each in value.items())
            return f"{{{named}}}"
        case Decimal():
            return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    )
