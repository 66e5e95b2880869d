"""Readers that skip files by their statistics find the same rows as without statistics."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ottla.pipeline.jobs.delta_files import TEXT, Stats, layout_of, write_rows

deltalake = pytest.importorskip("deltalake")

AT = datetime(2024, 5, 1, 6, 30, 0, 123_456)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LOCAL, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
CENTS, LONG = pa.decimal128(10, 2), pa.decimal128(38, 10)
LAST = "\U0010ffff"


def _times(kind: pa.DataType, *micros: int | None) -> pa.Array:
    return pa.array(micros, pa.int64()).cast(kind)


AS_DELTALAKE = {
    "booleans": pa.array([True, False, None, True]),
    "one boolean": pa.array([True, True, True, None]),
    "bytes": pa.array([1, -128, 127, None], pa.int8()),
    "whole numbers": pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()),
    "floats": pa.array([1.1, -2.5, None, 3e38], pa.float32()),
    "doubles": pa.array([1.1, -1e300, 1e-300, None, -0.0, 0.0]),
    "decimals": pa.array([Decimal("-10.25"), Decimal("1.50"), None, Decimal("0.01")], CENTS),
    "dates": pa.array([date(1, 1, 1), date(2024, 5, 1), None, date(9999, 12, 31)]),
    "times": pa.array([AT, AT.replace(year=1), None, AT.replace(year=1969)], LOCAL),
    "times of a zone": pa.array([AT, AT.replace(year=1), None, AT.replace(year=1969)], ZONED),
    "texts": pa.array(["a", "", None, "é", "b'c\"\\\n\0"]),
    "long texts": pa.array(["x" * 9_000, "a" * 100, None, "short"]),
    "texts that begin alike": pa.array(["a" * 40 + "b", "a" * 40, "a" * 32, "a" * 31]),
    "texts that are not ASCII": pa.array(["é" * 5_000, "ü" * 33, "日本" * 40, None]),
    "texts past 16 bits": pa.array(["🦀", "🦀" * 50, None, "\uffff"]),
    "texts with the last character": pa.array(["a" * 31 + LAST * 9, LAST, "a", None]),
    "binary": pa.array([b"x", b"\xff" * 9_000, None, b""]),
    "lists": pa.array([[1, None], [], None, [3]]),
    "structs": pa.array([{"x": 1, "y": ["a"]}, {"x": None, "y": []}, None, {"x": 3, "y": None}]),
    "maps": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "nothing": pa.array([None, None, None, None], pa.int64()),
    "nothing first": pa.array([None, None, "a", "b"]),
    "nothing last": pa.array([1.5, 2.5, None, None]),
}
"""Types for which write_deltalake writes correct statistics, too."""

BETTER = {
    "zeros": pa.array([0.0, -0.0, None, -0.0]),
    # It ignores NaN, which readers then take for a number between the bounds.
    "NaN": pa.array([1.5, nan, None, 2.5]),
    "NaN only": pa.array([nan, nan, nan, nan]),
    "NaN of floats": pa.array([1.5, nan, None, 2.5], pa.float32()),
    # It writes null, and readers skip the file.
    "infinity": pa.array([1.5, inf, None, 2.5]),
    "less than all": pa.array([1.5, -inf, None, 2.5]),
    # It writes a float, which may be beyond the value, or of another type.
    "long decimals": pa.array(
        [Decimal("12345678901234567890.0123456789"), Decimal(-1), None, Decimal(0)], LONG
    ),
    "largest decimals": pa.array([Decimal("99999999.99"), Decimal("-99999999.99"), None, Decimal(0)], CENTS),
    # It writes nothing about a struct that is always null.
    "structs of nothing": pa.array([None] * 4, pa.struct([("x", pa.int64())])),
    "times before the year 1": _times(LOCAL, -62_135_596_800_000_001, 0, None, 1),
    "times after the year 9999": _times(ZONED, 0, None, 253_402_300_800_000_000, 1),
    "texts of the last character": pa.array([LAST * 3_000, LAST * 33, None, "a"]),
}
"""Types with wrong or other statistics: only a read without statistics gives the truth."""


def _add(path: Path, values: pa.Array, says: Callable[[str], str | None]) -> None:
    """Add files with all values, half of them, and the other half."""
    rows = _rows(values)
    table = deltalake.DeltaTable.create(str(path), rows.schema)
    layout = layout_of(table, str(path))
    _commit(table, [file for some in _parts(rows) for file in write_rows(some.to_batches(), layout)], says)


def _commit(table: Any, files: list[dict[str, Any]], says: Callable[[str], str | None] = str) -> None:
    from deltalake.transaction import AddAction

    actions = [AddAction(each["path"], each["size"], {}, 0, True, says(each["stats"])) for each in files]
    table.create_write_transaction(actions, "append", table.schema(), [])


def _rows(values: pa.Array) -> pa.Table:
    return pa.table({"v": values, "n": pa.array(range(len(values)), pa.int64())})


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    half = rows.num_rows // 2
    yield from (rows, rows[:half], rows[half:])


def _read(path: Path, values: pa.Array) -> dict[str, list[int]]:
    """Return the row counts of each query: on tables, datasets and SQL, by each value."""
    table = deltalake.DeltaTable(str(path))
    dataset = table.to_pyarrow_dataset()
    found = {asked: dataset.to_table(filter=some)["n"].to_pylist() for asked, some in _conditions(values)}
    for asked in _filters(values):
        found[str(asked)] = table.to_pyarrow_table(filters=[asked])["n"].to_pylist()
    sql = deltalake.QueryBuilder().register("t", table)
    for condition in _sql(values):
        found[condition] = _numbers(sql, condition)
    return {asked: sorted(numbers) for asked, numbers in found.items()}


def _conditions(values: pa.Array) -> Iterator[tuple[str, Any]]:
    v, n = pc.field("v"), pc.field("n")
    yield from (("null", v.is_null()), ("valid", v.is_valid()), ("null or 1", v.is_null() | (n == 1)))
    yield from (("all", n >= 0), ("null and 1", v.is_null() & (n == 1)))
    for at, value in enumerate(_asked(values)):
        for sign, compare in OPERATORS.items():
            yield f"{sign} value {at}", compare(v, value)
            yield f"{sign} value {at} or 1", compare(v, value) | (n == 1)


def _asked(values: pa.Array) -> Iterator[pa.Scalar]:
    """Yield the values to search for. (Readers disagree about values below NaN, even in one Parquet file.)"""
    if not pa.types.is_nested(values.type):
        yield from (value for value in values if value.is_valid and not _is_nan(value))


def _is_nan(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and pc.is_nan(value).as_py())


def _filters(values: pa.Array) -> Iterator[tuple[str, str, Any]]:
    yield from (("v", sign, value) for value in [*_asked(values)][:1] for sign in ("==", "!=", "<=", ">="))


def _sql(values: pa.Array) -> Iterator[str]:
    yield from ("v is null", "v is not null", "n >= 0", "v is null or n = 1")
    for value in _asked(values):
        yield from (f"v {sign} {_literal(value)}" for sign in OPERATORS)


def _literal(value: pa.Scalar) -> str:
    kind = value.type
    if pa.types.is_timestamp(kind):
        zone = f'Some("{kind.tz}")' if kind.tz else "None"
        return f"arrow_cast({value.cast(pa.int64())}, 'Timestamp(Microsecond, {zone})')"
    if pa.types.is_binary(kind):
        return f"X'{value.as_py().hex()}'"
    names = {pa.bool_(): "Boolean", pa.string(): "Utf8", pa.date32(): "Date32", pa.float64(): "Float64"}
    names |= {pa.float32(): "Float32", pa.int8(): "Int8", pa.int64(): "Int64"}
    names |= {each: f"Decimal128({each.precision}, {each.scale})" for each in (CENTS, LONG)}
    text = (value if kind == pa.string() else value.cast(pa.string())).as_py().replace("'", "''")
    if pa.types.is_decimal(kind):
        text = format(value.as_py(), "f")
    return f"arrow_cast('{text}', '{names[kind]}')"


def _numbers(sql: Any, condition: str) -> list[int]:
    found = pa.table(sql.execute(f"select n from t where {condition}").read_all())
    return [int(number) for number in found["n"].to_pylist()]


@pytest.mark.parametrize("values", (AS_DELTALAKE | BETTER).values(), ids=(AS_DELTALAKE | BETTER).keys())
def test_no_row_is_hidden(tmp_path: Path, values: pa.Array) -> None:
    _add(tmp_path / "ours", values, str)
    _add(tmp_path / "bare", values, lambda stats: None)

    assert _read(tmp_path / "ours", values) == _read(tmp_path / "bare", values)


@pytest.mark.parametrize("values", AS_DELTALAKE.values(), ids=AS_DELTALAKE.keys())
def test_answers_are_those_of_tables_that_deltalake_wrote(tmp_path: Path, values: pa.Array) -> None:
    _add(tmp_path / "ours", values, str)
    for some in _parts(_rows(values)):
        deltalake.write_deltalake(str(tmp_path / "theirs"), some, mode="append")

    assert _read(tmp_path / "ours", values) == _read(tmp_path / "theirs", values)


def test_fields_of_structs_and_columns_far_behind_are_found(tmp_path: Path) -> None:
    columns = {f"c{at}": pa.array([at, at + 1]) for at in range(40)}
    rows = pa.table(columns | {"s": pa.array([{"x": 1}, {"x": 2}])})
    table = deltalake.DeltaTable.create(str(tmp_path), rows.schema)
    _commit(table, write_rows(rows.to_batches(), layout_of(table, str(tmp_path))))

    dataset = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_dataset()
    for at in range(40):
        assert dataset.count_rows(pc.field(f"c{at}") == at + 1) == 1
        assert dataset.count_rows(pc.field(f"c{at}").is_valid()) == 2
    assert dataset.count_rows(pc.field("s", "x") == 2) == 1
    sql = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(tmp_path)))
    assert pa.table(sql.execute("select c1 from t where s['x'] = 2").read_all())["c1"].to_pylist() == [2]


def _said(*parts: pa.Table) -> Any:
    stats = Stats(parts[0].schema)
    for some in parts:
        stats.add(some)
    return json.loads(stats.as_json())


def test_bounds_are_those_of_all_parts() -> None:
    types = {"n": pa.int64(), "text": pa.string(), "day": pa.date32(), "at": ZONED, "local": LOCAL}
    more = {"part": pa.float64(), "on": pa.bool_(), "raw": pa.binary(), "price": CENTS}
    schema = pa.schema([*(types | more).items(), ("list", pa.list_(pa.int64()))])
    first = {"n": 2, "text": "b", "day": date(2024, 5, 1), "at": AT.replace(tzinfo=UTC), "local": AT}
    last = {"n": -3, "text": "é", "part": 1.5, "on": True, "raw": b"x", "price": Decimal("1.50"), "list": [1]}
    found = _said(*(pa.Table.from_pylist([row], schema) for row in (first, {}, last)))
    least = {"n": -3, "text": "b", "day": "2024-05-01", "at": "2024-05-01T06:30:00.123456Z"}
    least |= {"local": "2024-05-01T06:30:00.123456", "part": 1.5, "on": True, "price": 1.5}

    nulls = {"n": 1, "text": 1} | dict.fromkeys(("day", "at", "local", "part", "on", "raw", "price"), 2)
    assert found == {
        "numRecords": 3,
        "nullCount": nulls,
        "minValues": least,
        "maxValues": least | {"n": 2, "text": "é"},
    }


def test_a_file_has_bounds_of_all_columns_or_of_none() -> None:
    known = pa.table({"v": [1.5, None], "n": [1, 2]})
    for value in (nan, inf, -inf):
        unknown = pa.table({"v": [1.5, value], "n": [3, None]})
        for parts in ((known, unknown), (unknown, known)):
            assert _said(*parts) == {"numRecords": 4, "nullCount": {"v": 1, "n": 1}}


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("a" * TEXT, "a" * TEXT),
        ("a" * 33, "a" * 31 + "b"),
        ("a" * 31 + LAST * 2, "a" * 30 + "b"),
        ("é" * 9_000, "é" * 31 + "ê"),
        ("a" * 31 + "\ud7ff" + "a", "a" * 31 + "\ue000"),
    ],
)
def test_bounds_of_texts_are_short(text: str, most: str) -> None:
    found = _said(pa.table({"v": [text]}))
    assert (found["minValues"], found["maxValues"]) == ({"v": text[:TEXT]}, {"v": most})


def test_text_that_is_no_text_has_no_bounds() -> None:
    # Spark decodes bytes unchanged.
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    assert _said(pa.table({"v": broken})) == {"numRecords": 1, "nullCount": {"v": 0}}


def test_decimals_keep_all_digits() -> None:
    stats = Stats(pa.schema([("v", LONG)]))
    stats.add(pa.table({"v": pa.array([Decimal("-0.0000000001"), Decimal("12345678901234567890.1")], LONG)}))
    least, most = '{"v": -0.0000000001}', '{"v": 12345678901234567890.1000000000}'
    assert stats.as_json().endswith(f'"minValues": {least}, "maxValues": {most}}}')
