"""JSON values as columns: decoded by Arrow if it supports the types of all fields.

The decoder depends only on the fields, so the result for a value does not depend on its neighbours.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

from ottla.pipeline.decoded import Decoded, decode_each

if TYPE_CHECKING:
    import pyarrow as pa

_FEW = 256
"""If one of this many values is malformed, they are decoded one by one."""


def decode_json(values: pa.Array, wanted: pa.StructType) -> Decoded:
    """Decode a column of JSON objects; null stays null, and a malformed value becomes null."""
    if not all(_is_native(field.type, nested=False) for field in wanted):
        return decode_each(lambda value: _fit(_loads(value), wanted), values, wanted)
    found = _joined(list(_read(values.drop_null(), wanted)), wanted)
    return _spread(found, values)


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
    """Decode values at once; if one of them is malformed, split them into smaller and smaller parts."""
    found = _at_once(values, wanted)
    if not isinstance(found, str):
        yield Decoded(found)
    elif len(values) == 1:
        yield _none(found, wanted)
    elif len(values) <= _FEW and (bad := _malformed(values)):
        yield from _around(bad, values, wanted)
    else:
        middle = len(values) // 2
        yield from _read(values.slice(0, middle), wanted)
        yield from _read(values.slice(middle), wanted)


def _around(bad: dict[int, str], values: pa.Array, wanted: pa.StructType) -> Iterator[Decoded]:
    """Decode the values between those that are not JSON at all."""
    start = 0
    for index, reason in bad.items():
        if index > start:
            yield from _read(values.slice(start, index - start), wanted)
        yield _none(reason, wanted)
        start = index + 1
    if start < len(values):
        yield from _read(values.slice(start), wanted)


def _at_once(values: pa.Array, wanted: pa.StructType) -> pa.StructArray | str:
    """Decode values as lines of JSON; return the reason if one is malformed."""
    import pyarrow as pa

    if not len(values):
        return pa.array([], wanted)
    try:
        lines = _lines(values)
        table = _table(lines, wanted)
        columns = [table.column(each.name).combine_chunks().cast(each.type) for each in wanted]
    except (ValueError, NotImplementedError) as error:  # the beginning of Arrow's error messages
        return str(error).removeprefix("JSON parse error: ").partition(" in row ")[0]
    if table.num_rows != len(values):
        return "several objects where one was expected"
    return pa.StructArray.from_arrays(columns, fields=list(wanted))


def _lines(values: pa.Array) -> pa.Buffer:
    """Return values on lines of their own. Raises ValueError if their boundaries would be ambiguous.

    A value that begins with { and ends with } is one object, several objects, or malformed: half an object
    would need a comma or a bracket before the next line, which begins with {. So if there are as many objects
    as lines, each line holds one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = values.cast(pa.string())  # raises for invalid UTF-8, which Arrow's reader would accept
    if len(texts) == 1:
        texts = pa.array([texts[0].as_py().strip()])
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        raise ValueError("no object")
    return pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "\n")[0].as_buffer()


def _table(lines: pa.Buffer, wanted: pa.StructType) -> pa.Table:
    import pyarrow as pa
    from pyarrow import json as arrow_json

    text = pa.string()
    fields = [each.with_type(text) if pa.types.is_date32(each.type) else each for each in wanted]
    return arrow_json.read_json(
        pa.BufferReader(lines),
        # One block, because an object must not span two.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
        ),
    )


def _malformed(values: pa.Array) -> dict[int, str]:
    """Return which values are not JSON, and why; Arrow would need longer to check each alone."""
    found: dict[int, str] = {}
    for index, value in enumerate(values.to_pylist()):
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            found[index] = str(error)
    return found


def _none(reason: str, wanted: pa.StructType) -> Decoded:
    import pyarrow as pa

    return Decoded(pa.nulls(1, wanted), [reason])


def _joined(parts: list[Decoded], wanted: pa.StructType) -> Decoded:
    import pyarrow as pa

    errors = [each for part in parts for each in (part.errors or [None] * len(part.values))]
    return Decoded(
        pa.concat_arrays([part.values.cast(wanted) for part in parts]), errors if any(errors) else None
    )


def _spread(found: Decoded, values: pa.Array) -> Decoded:
    """Insert nulls at their positions among the values."""
    import pyarrow.compute as pc

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


def _loads(value: bytes) -> Any:
    return json.loads(value.decode(), parse_float=Decimal)


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
        (
            types.is_struct,
            dict,
            lambda value, to: {each.name: _fit(value.get(each.name), each.type) for each in to},
        ),
        (types.is_list, list, lambda value, to: [_fit(each, to.value_type) for each in value]),
        (
            types.is_map,
            dict,
            lambda value, to: [(key, _fit(each, to.item_type)) for key, each in value.items()],
        ),
        (types.is_timestamp, str, lambda value, _: datetime.fromisoformat(value)),
        (types.is_date32, str, lambda value, _: date.fromisoformat(value)),
        (types.is_binary, str, lambda value, _: base64.b64decode(value, validate=True)),
        (types.is_decimal128, (str, int, Decimal), lambda value, _: Decimal(value)),
        (types.is_floating, (int, float, Decimal), lambda value, _: float(value)),
        (types.is_integer, int, lambda value, _: value),
        (types.is_boolean, bool, lambda value, _: value),
        (types.is_string, str, lambda value, _: value),
    )
