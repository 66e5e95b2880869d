"""Records as Arrow columns, without a Python object per record.

The columns go out through Arrow's C data interface: any Arrow library imports them without a copy, and none
is needed here. Columns are `key` and `value` (binary), `topic` (dictionary of text), `partition` (int32),
`offset` (int64), `timestamp` (milliseconds, UTC), `timestamp_type` (int32: 0 create time, 1 log append time,
-1 where there is none), and `headers` (list of `key` and `value`), in this order.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.records._arrow import ArrowColumns, ColumnBuilder

__all__ = ["ALL_COLUMNS", "USUAL_COLUMNS", "ArrowColumns", "ColumnBuilder", "check_columns"]

ALL_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestamp_type", "headers")
"""All columns, in order."""

USUAL_COLUMNS = ALL_COLUMNS[:6]
"""The columns that are made by default."""


def check_columns(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return the requested columns in order. Raises ValueError for an unknown one."""
    if names is None:
        return USUAL_COLUMNS
    wanted = {names} if isinstance(names, str) else set(names)
    if unknown := wanted - set(ALL_COLUMNS):
        raise ValueError(f"there is no column {min(unknown)!r}; there are {', '.join(ALL_COLUMNS)}")
    if not wanted:
        raise ValueError(f"name at least one column of {', '.join(ALL_COLUMNS)}")
    return tuple(name for name in ALL_COLUMNS if name in wanted)
