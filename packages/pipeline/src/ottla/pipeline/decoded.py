"""Decoded values as a column, with the reason for each value that could not be decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values as a column, and the reason for each that could not be decoded (None: all could)."""

    values: pa.Array
    errors: list[str | None] | None = None


def decode_each(read: Callable[[bytes], Any], values: pa.Array, wanted: pa.DataType) -> Decoded:
    """Decode values one by one; null stays null, and a malformed value becomes null."""
    rows: list[Any] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        row, error = _one(read, value)
        rows.append(row)
        errors.append(error)
    _look_closer(rows, errors, wanted)
    return Decoded(_array(rows, wanted), errors if any(errors) else None)


def _one(read: Callable[[bytes], Any], value: bytes | None) -> tuple[Any, str | None]:
    if value is None:
        return None, None
    try:
        row = read(value)
    except Exception as error:  # any error of a decoder concerns this one value
        return None, _reason(error)
    if not isinstance(row, dict):
        return None, f"{type(row).__name__} where fields were expected"
    return row, None


def _look_closer(rows: list[Any], errors: list[str | None], wanted: pa.DataType) -> None:
    """Record the reason for each row that does not fit; usually all rows fit, which one attempt shows."""
    if _misfit(rows, wanted) is None:
        return
    for index, row in enumerate(rows):
        reason = _misfit([row], wanted)
        if reason is not None:
            rows[index], errors[index] = None, reason


def _misfit(rows: Sequence[Any], wanted: pa.DataType) -> str | None:
    try:
        _array(rows, wanted)
    except (
        Exception
    ) as error:  # Arrow raises many types of errors for values that do not fit, also Python's own
        return _reason(error)
    return None


def _array(rows: Sequence[Any], wanted: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.array(rows, wanted)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
