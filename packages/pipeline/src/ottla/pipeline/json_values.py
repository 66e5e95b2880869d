"""JSON values as columns.

One rule decides about each value, whichever fields stand beside it: `_fit`, in Python. Where Arrow supports
the types of all fields it decodes whole columns at once, six times as fast; its answer counts only if it
accepts all of them, for it accepts less than the rule, and never anything else.

The rule is that of Spark's from_json, except that text and numbers are distinguished and a repeated field is
malformed: decimals are rounded half up to the digits of their column, digits behind microseconds are cut.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import Any

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.lazy import pa, pc


@dataclass(frozen=True, slots=True)
class Decoded:
    """Values as a column, and the reason for each that could not be decoded (None: all could)."""

    values: pa.Array
    errors: list[str | None] | None = None


def decode_each(read: Callable[[Any], Any], values: pa.Array, wanted: pa.DataType) -> Decoded:
    """Decode values one by one; null stays null, and a malformed value becomes null.

    Raises errors of pipelines that `read` raises; any other concerns one value.
    """
    rows: list[Any] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        row, error = _one(read, value)
        rows.append(row)
        errors.append(error)
    _look_closer(rows, errors, wanted)
    return Decoded(_array(rows, wanted), errors if any(errors) else None)


def _one(read: Callable[[Any], Any], value: Any) -> tuple[Any, str | None]:
    if value is None:
        return None, None
    try:
        row = read(value)
    except PipelineError:
        raise  # it concerns all values
    except Exception as error:  # any other error of a decoder concerns this one value
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
    return pa.array(rows, wanted)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


_FEW = 256
"""If Arrow does not accept this many values, they are decoded one by one."""

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[T ]\d\d(?::\d\d(?::\d\d(?:\.\d{1,6})?)?)?)?)(?<!\.)\d*(Z|[+-]\d\d(?::?\d\d)?)?"
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LONGEST_INTEGER = 40
"""Digits of an integer that some column can hold; Python refuses to convert far longer ones."""
_ROUNDING = Context(prec=76, rounding=ROUND_HALF_UP)


def decode_json(values: pa.Array, wanted: pa.StructType) -> Decoded:
    """Decode a column of JSON objects; null stays null, and a malformed value becomes null."""
    if not all(_is_native(field.type, nested=False) for field in wanted):
        return _one_by_one(values, wanted)
    return _spread(_joined(list(_read(values.drop_null(), wanted)), wanted), values)


def _one_by_one(values: pa.Array, wanted: pa.StructType) -> Decoded:
    return decode_each(lambda value: fit_json(value, wanted), values, wanted)


def fit_json(value: bytes, wanted: pa.StructType) -> Any:
    """Decode a JSON object into a row. Raises TypeError, ValueError if it does not fit."""
    return _fit(_loads(value), wanted)


# --- decoding by Arrow


def _is_native(wanted: pa.DataType, *, nested: bool) -> bool:
    """Whether Arrow's JSON reader supports such a column. It reads dates as text."""
    from pyarrow import types

    if types.is_struct(wanted):
        return all(_is_native(field.type, nested=True) for field in wanted)
    if types.is_list(wanted):
        return _is_native(wanted.value_type, nested=True)
    if types.is_date32(wanted):
        return not nested
    known = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_decimal128)
    return any(test(wanted) for test in (*known, types.is_timestamp))


def _read(values: pa.Array, wanted: pa.StructType) -> Iterator[Decoded]:
    """Decode values at once; if Arrow does not accept one of them, split them until only a few are left."""
    found = _at_once(values, wanted)
    if found is not None:
        yield Decoded(found)
    elif len(values) <= _FEW:
        yield _one_by_one(values, wanted)
    else:
        middle = len(values) // 2
        yield from _read(values.slice(0, middle), wanted)
        yield from _read(values.slice(middle), wanted)


def _at_once(values: pa.Array, wanted: pa.StructType) -> pa.StructArray | None:
    """Decode values as lines of JSON; return None if Arrow does not accept all of them."""
    if not len(values):
        return pa.array([], wanted)
    try:
        table = _table(_lines(values), wanted)
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in wanted]
        for column in columns:
            if pa.types.is_decimal(column.type) or pa.types.is_nested(column.type):
                column.validate(full=True)  # the reader accepts a decimal with one digit too many
    except (ValueError, NotImplementedError):  # also the beginning of Arrow's own errors
        return None
    if table.num_rows != len(values):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _lines(values: pa.Array) -> pa.Buffer:
    """Return values on lines of their own. Raises ValueError if their boundaries would be ambiguous.

    A value that begins with { and ends with } is one object, several objects, or malformed: half an object
    would need a comma or a bracket before the next line, which begins with {. So if there are as many objects
    as lines, each line holds one.
    """
    texts = values.cast(pa.string())  # raises for invalid UTF-8, which Arrow's reader would accept
    if len(texts) == 1:
        texts = pa.array([texts[0].as_py().strip()])
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        raise ValueError("no object")
    return pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()


def _table(lines: pa.Buffer, wanted: pa.StructType) -> pa.Table:
    from pyarrow import json as arrow_json

    fields = [field.with_type(_type_to_read(field.type)) for field in wanted]
    return arrow_json.read_json(
        pa.BufferReader(lines),
        # One block, because an object must not span two.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
        ),
    )


def _type_to_read(wanted: pa.DataType) -> pa.DataType:
    """Return the type with which Arrow reads a column: dates as text, decimals in 256 bits.

    Its reader brings a number of 38 digits to the column's scale without a look at the overflow: 11E20 as a
    decimal(38, 18) wrapped around in 128 bits, to another number that fits. In 256 bits all have room, and
    the cast to the wanted type raises for those that do not fit.
    """
    from pyarrow import types

    if types.is_date32(wanted):
        return pa.string()
    if types.is_decimal128(wanted):
        return pa.decimal256(wanted.precision, wanted.scale)
    if types.is_struct(wanted):
        return pa.struct([field.with_type(_type_to_read(field.type)) for field in wanted])
    if types.is_list(wanted):
        return pa.list_(wanted.value_field.with_type(_type_to_read(wanted.value_type)))
    return wanted


def _joined(parts: list[Decoded], wanted: pa.StructType) -> Decoded:
    errors = [error for part in parts for error in (part.errors or [None] * len(part.values))]
    return Decoded(
        pa.concat_arrays([part.values.cast(wanted) for part in parts]), errors if any(errors) else None
    )


def _spread(found: Decoded, values: pa.Array) -> Decoded:
    """Insert nulls at their positions among the values."""
    if not values.null_count:
        return found
    is_there = values.is_valid()
    places = pc.if_else(is_there, pc.subtract(pc.cumulative_sum(is_there.cast("int64")), 1), None)
    spread = found.values.take(places)
    if found.errors is None:
        return Decoded(spread)
    errors = [None if place is None else found.errors[place] for place in places.to_pylist()]
    return Decoded(spread, errors)


# --- decoding one by one


class _Object(dict[str, Any]):
    """An object of JSON, and the names that it has more than once."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: set[str] = set()
        if len(self) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            self.repeated = {name for name, count in counts.items() if count > 1}


def _loads(value: bytes) -> Any:
    return json.loads(value.decode(), parse_float=Decimal, parse_int=_integer, object_pairs_hook=_Object)


def _integer(text: str) -> int | Decimal:
    return int(text) if len(text) <= _LONGEST_INTEGER else Decimal(text)


def _fields(value: _Object, wanted: pa.StructType) -> dict[str, Any]:
    for field in wanted:
        if field.name in value.repeated:
            raise ValueError(f"field {field.name!r} is repeated")
    return {field.name: _fit(value.get(field.name), field.type) for field in wanted}


def _entries(value: _Object, wanted: pa.MapType) -> list[tuple[str, Any]]:
    if value.repeated:
        raise ValueError(f"keys are repeated: {', '.join(sorted(value.repeated))}")
    return [(key, _fit(item, wanted.item_type)) for key, item in value.items()]


def _timestamp(text: str, wanted: pa.DataType) -> datetime:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a timestamp")
    return datetime.fromisoformat(found[1] + (found[2] or ""))


def _date(text: str, wanted: pa.DataType) -> date:
    if _DATE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a date")
    return date.fromisoformat(text)


def _decimal(value: str | int | Decimal, wanted: pa.DataType) -> Decimal:
    if isinstance(value, str) and _DECIMAL.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a number")
    return Decimal(value).quantize(Decimal(1).scaleb(-wanted.scale), context=_ROUNDING)


def _fit(value: Any, wanted: pa.DataType) -> Any:
    """Convert a JSON value to a type for Arrow. Raises TypeError, ValueError if it does not fit."""
    if value is None:
        return None
    for is_wanted, kind, make in _ways():
        if is_wanted(wanted):
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise TypeError(f"{type(value).__name__} where {wanted} was expected")
            return make(value, wanted)
    raise TypeError(f"JSON has nothing for {wanted}")


_Way = tuple[Callable[[Any], bool], Any, Callable[[Any, Any], Any]]


@cache
def _ways() -> tuple[_Way, ...]:
    """Return for each kind of type the JSON types it accepts, and the conversion."""
    from pyarrow import types

    return (
        (types.is_struct, dict, _fields),
        (types.is_list, list, lambda value, to: [_fit(item, to.value_type) for item in value]),
        (types.is_map, dict, _entries),
        (types.is_timestamp, str, _timestamp),
        (types.is_date32, str, _date),
        (types.is_binary, str, lambda value, _: base64.b64decode(value, validate=True)),
        (types.is_decimal128, (str, int, Decimal), _decimal),
        (types.is_floating, (int, float, Decimal), lambda value, _: float(value)),
        (types.is_integer, int, lambda value, _: value),
        (types.is_boolean, bool, lambda value, _: value),
        (types.is_string, str, lambda value, _: value),
    )
