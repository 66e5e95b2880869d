"""Values of records as columns: the result of one never depends on its neighbours."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import given_options
from ottla.pipeline.values import RowOptions, ValueFormat, decode, value_format

UTC_US = pa.timestamp("us", tz="UTC")
JSON = ValueFormat("json", "unused")
ORDER = pa.struct([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


def column(values: Sequence[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def one(value: bytes, kind: pa.DataType, given: ValueFormat = JSON) -> Any:
    """Decode {"a": …}; return the value or the reason."""
    found = decode(given, column([value]), pa.struct([("a", kind)]))
    return found.errors[0] if found.errors else found.values.to_pylist()[0]["a"]


# --- options


def format_of(given: dict[str, str]) -> ValueFormat:
    return value_format(RowOptions(**given_options(RowOptions, given)))


def test_values_are_bytes_unless_said_otherwise() -> None:
    found = format_of({})

    assert (found.kind, found.ddl, found.column_names) == ("raw", "value BINARY", ("value",))


@pytest.mark.parametrize("mode", ["permissive", "dropmalformed", "failfast"])
def test_columns_depend_on_what_becomes_of_malformed_values(mode: str) -> None:
    found = format_of({"value.format": "JSON", "value.schema": "id BIGINT", "value.mode": mode.upper()})

    extra = ", value_raw BINARY, value_error STRING" if mode == "permissive" else ""
    assert found.ddl == f"value STRUCT<id BIGINT>{extra}"
    assert len(found.column_names) == found.ddl.count(",") + 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"value.format": "xml"},
            "'value.format' must be 'raw' or 'json' or 'msgpack' or 'avro' or 'registry', not",
        ),
        ({"value.schema": "id INT"}, "'value.schema' needs value.format"),
        ({"value.format": "json"}, "'value.schema' is missing"),
        ({"value.format": "json", "value.schema": "id INT", "value.mode": "drop"}, "'value.mode' must be"),
        ({"value.format": "json", "value.schema": "id INT Not  Null"}, "remove NOT NULL"),
        ({"value.format": "avro", "value.schema": "id INT"}, "must be an Avro schema, as JSON"),
        ({"value.format": "avro", "value.schema": '"int"'}, "must be the Avro schema of a record"),
        ({"value.format": "avro", "value.schema": '{"type": "record"}'}, "is not an Avro schema"),
    ],
)
def test_invalid_options_are_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        format_of(given)


# --- JSON


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        (b"1", pa.int64(), 1),
        (b"1", pa.float64(), 1.0),
        (b"true", pa.bool_(), True),
        ('"kávé"'.encode(), pa.string(), "kávé"),
        (b"1.50", pa.decimal128(10, 2), Decimal("1.50")),
        (b'"1.5"', pa.decimal128(10, 2), Decimal("1.50")),
        (b"1.255", pa.decimal128(10, 2), Decimal("1.26")),
        (b"-0.005", pa.decimal128(10, 2), Decimal("-0.01")),
        (b'"2.675"', pa.decimal128(10, 2), Decimal("2.68")),
        (b'"2026-01-02T03:04:05.123456789Z"', UTC_US, datetime(2026, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        (b'"2026-01-02T03:04:05.9999999+01"', UTC_US, datetime(2026, 1, 2, 2, 4, 5, 999_999, tzinfo=UTC)),
        (b"1e400", pa.float64(), float("inf")),
        (b'"2026-01-02"', pa.date32(), date(2026, 1, 2)),
        (b'"2026-01-02T03:04:05.678Z"', UTC_US, datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)),
        (b'"2026-01-02T03:04:05+02:00"', UTC_US, datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        (b'"2026-01-02 03:04:05"', UTC_US, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (b"[1, 2]", pa.list_(pa.int64()), [1, 2]),
        (b'{"b": "x", "c": 1}', pa.struct([("b", pa.string())]), {"b": "x"}),
        (b'{"b": 1}', pa.map_(pa.string(), pa.int64()), [("b", 1)]),
        (b'"YWI="', pa.binary(), b"ab"),
        (b"null", pa.int64(), None),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_json_has_columns_of_every_type(text: bytes, kind: pa.DataType, wanted: Any, nested: bool) -> None:
    if nested:
        assert one(b'{"a": {"deep": ' + text + b"}}", pa.struct([("deep", kind)])) == {"deep": wanted}
    else:
        assert one(b'{"a": ' + text + b"}", kind) == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"1", pa.string()),
        (b'"1"', pa.int64()),
        (b"1.5", pa.int64()),
        (b"300", pa.int8()),
        (b"12345678901234567890", pa.int64()),
        (b"1", pa.bool_()),
        (b"123456789.555", pa.decimal128(10, 2)),
        (b'"1_000"', pa.decimal128(10, 2)),
        (b'"NaN"', pa.decimal128(10, 2)),
        (b'"20260102"', pa.date32()),
        (b'"2026-W01-1"', UTC_US),
        (b'"2026-01-02T03:04:05."', UTC_US),
        (b'{"b": 1, "b": 2}', pa.map_(pa.string(), pa.int64())),
        (b'{"b": 1, "b": 2}', pa.struct([("b", pa.int64())])),
        (b"9" * 5_000, pa.int64()),
        (b'"tomorrow"', pa.date32()),
        (b'"tomorrow"', UTC_US),
        (b"1", UTC_US),
        (b"{}", pa.list_(pa.int64())),
        (b"[]", pa.struct([("b", pa.string())])),
        (b"[]", pa.map_(pa.string(), pa.int64())),
        (b'"?"', pa.binary()),
    ],
)
@pytest.mark.parametrize("beside_a_map", [False, True])
def test_json_that_does_not_fit_is_null_with_a_reason(
    text: bytes, kind: pa.DataType, beside_a_map: bool
) -> None:
    """Beside a map, which Arrow cannot read from JSON, Python reads all fields with the same result."""
    fields = [("a", kind), *([("m", pa.map_(pa.string(), pa.string()))] if beside_a_map else [])]

    found = decode(JSON, column([b'{"a": ' + text + b"}"]), pa.struct(fields))

    assert found.values.to_pylist() == [None]
    assert found.errors is not None
    assert found.errors[0]


@pytest.mark.parametrize(
    "value",
    [b"", b" ", b"null", b"1", b'"x"', b"[]", b"{", b"}", b'{"id": 1', b'{"id": 1}}', b'{"id": 1}{"id": 2}',
     b'{"id": 1}\n{"id": 2}', b'{"id": 1},', b"{'id': 1}", b'{"name": "\xff"}', b'{"name": "\\ud800"}',
     b'{"name": "a\nb"}', b'{"id": 1, "id": 2}', b"{id: 1}", b'{"id": 1} x', b"[" * 5_000],
)  # fmt: skip
def test_a_value_that_is_no_object_is_null_with_a_reason_and_spares_its_neighbours(value: bytes) -> None:
    good = b'{"id": 7, "name": "x"}'

    found = decode(JSON, column([good, value, good, value, value, good]), ORDER)

    whole = {"id": 7, "name": "x", "price": None}
    assert found.values.to_pylist() == [whole, None, whole, None, None, whole]
    assert found.errors is not None
    assert [bool(error) for error in found.errors] == [False, True, False, True, True, False]


def test_halves_of_an_object_do_not_make_one() -> None:
    values = [
        b'{"id": 1}',
        b'{"id":',
        b"2}",
        b'{"id": 3} {"id": 4}',
        b'{"name": "}',
        b'{"}',
        b'{"price": {}',
        b"{}",
    ]

    found = decode(JSON, column(values), ORDER)

    assert [row and row["id"] for row in found.values.to_pylist()] == [
        1,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
    ]
    assert found.errors is not None
    assert [bool(error) for error in found.errors] == [False, True, True, True, True, True, True, False]


def test_objects_may_have_several_lines_and_space_around_them() -> None:
    found = decode(JSON, column([b'{\n  "id": 1\n}', b' {"id": 2}\r\n']), ORDER)

    assert found.errors is None
    assert [row["id"] for row in found.values.to_pylist()] == [1, 2]


def test_a_null_value_stays_null_and_is_not_malformed() -> None:
    found = decode(JSON, column([None, b'{"id": 1}', None, b"x", None]), ORDER)

    assert [row and row["id"] for row in found.values.to_pylist()] == [None, 1, None, None, None]
    assert found.errors is not None
    assert [bool(error) for error in found.errors] == [False, False, False, True, False]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_columns_of_nulls_alone_are_read(count: int) -> None:
    found = decode(JSON, column([None] * count), ORDER)

    assert found.values.to_pylist() == [None] * count
    assert found.errors is None


def test_a_value_may_be_larger_than_the_reader_s_blocks() -> None:
    name = "x" * 3_000_000

    found = decode(JSON, column([json.dumps({"name": name}).encode()] * 2), ORDER)

    assert found.values.field("name").to_pylist() == [name, name]


PIECES = st.sampled_from(
    [b"{", b"}", b'{"id": 1}', b'"', b'"id"', b":", b",", b"1", b"[", b"]", b" ", b"\n", b'{"name": "x"}',
     b"\xff", b"null", b'{"price": 1.5}', b'{"id": "x"}'],
)  # fmt: skip
VALUES = st.lists(st.none() | st.lists(PIECES, max_size=6).map(b"".join), max_size=12)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.sampled_from(["native", "python"]))
def test_the_result_of_a_value_does_not_depend_on_its_neighbours(
    values: list[bytes | None], way: str
) -> None:
    kind = ORDER if way == "native" else pa.struct([*ORDER, ("m", pa.map_(pa.string(), pa.string()))])

    together = decode(JSON, column(values), kind)
    alone = [decode(JSON, column([value]), kind) for value in values]

    assert together.values.to_pylist() == [each.values.to_pylist()[0] for each in alone]
    errors = together.errors or [None] * len(values)
    assert [bool(each) for each in errors] == [bool(each.errors) for each in alone]


# --- one rule for both decoders

TOKENS = st.one_of(
    st.sampled_from(
        ["null", "true", "1", "-0", "1.0", "1e2", "300", "1.255", "0.005", "1e400", "1e39", "NaN", '"NaN"',
         "[1]", "[null]", "[]", "{}", '{"b": 1}', '{"b": 1, "b": 2}', '"1_0"', '"1."', '".5"', '" 1"', '"a"',
         '"\\ud800"', '"YWI="', "12345678901234567890", "123456789", "999999999.99", "99999999.995"],
    ),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
    st.integers().map(str),
    st.text("0123456789-.eE+", min_size=1, max_size=8).map(lambda text: f'"{text}"'),
    st.builds(
        '"{}-{:02}-{:02}{}{}{}"'.format,
        st.sampled_from(["2026", "0001", "9999", "10000", "26"]),
        st.integers(0, 13),
        st.integers(0, 32),
        st.sampled_from(["", "T03", " 03:04", "T03:04:05", "T03:04:60", "T24:00:00", "t03:04:05"]),
        st.sampled_from(["", ".1", ".123456", ".1234567", ".123456789", ".", ",5"]),
        st.sampled_from(["", "Z", "z", "+01", "+0100", "-23:59", "+24:00", "+1"]),
    ),
)  # fmt: skip
TYPES = st.sampled_from(
    [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(10, 2),
     pa.decimal128(38, 18), pa.date32(), UTC_US, pa.timestamp("us"), pa.list_(pa.int64()),
     pa.struct([("b", pa.int64())])],
)  # fmt: skip


@pytest.mark.parametrize("kind", [pa.decimal128(38, 18), pa.list_(pa.decimal128(38, 18))])
def test_a_decimal_with_too_many_digits_is_malformed_and_no_other_number(kind: pa.DataType) -> None:
    for token in ('"11E20"', "1100000000000000000000", '"1E25"', '"12345678901234567890123456789012345678"'):
        text = f"[{token}]" if pa.types.is_list(kind) else token

        found = decode(JSON, column([f'{{"a": {text}}}'.encode()]), pa.struct([("a", kind)]))

        assert found.errors is not None, (token, found.values.to_pylist())
        assert found.errors[0] is not None


@settings(max_examples=1_000, deadline=None)
@example(pa.decimal128(38, 18), ['"11E20"'])
@given(TYPES, st.lists(TOKENS, min_size=1, max_size=4))
def test_a_value_is_decoded_alike_beside_a_column_that_arrow_cannot_read(
    kind: pa.DataType, tokens: list[str]
) -> None:
    values = column([f'{{"a": {token}}}'.encode() for token in tokens])

    by_arrow = decode(JSON, values, pa.struct([("a", kind)]))
    by_python = decode(JSON, values, pa.struct([("a", kind), ("m", pa.map_(pa.string(), pa.string()))]))

    assert [error is None for error in by_arrow.errors or [None] * len(tokens)] == [
        error is None for error in by_python.errors or [None] * len(tokens)
    ], (tokens, by_arrow.errors, by_python.errors)
    # As text, because NaN is not equal to itself; -0 is 0 for Python, which reads it as an integer.
    texts = [repr(found.values.field("a").to_pylist()) for found in (by_arrow, by_python)]
    assert texts[0].replace("-0.0", "0.0") == texts[1].replace("-0.0", "0.0")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.integers(-(2**63), 2**63 - 1) | st.none(),
                "name": st.text(st.characters(exclude_categories=["Cs"])) | st.none(),
                "price": st.floats(allow_nan=False, allow_infinity=False),
                "other": st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)),
            },
        ),
        max_size=10,
    ),
    st.booleans(),
)
def test_objects_come_back(rows: list[dict[str, Any]], escaped: bool) -> None:
    values = [json.dumps(row, ensure_ascii=escaped).encode() for row in rows]

    found = decode(JSON, column(list(values)), ORDER)

    assert found.errors is None
    assert found.values.to_pylist() == [
        {name: row.get(name) for name in ("id", "name", "price")} for row in rows
    ]


# --- MessagePack


def test_messagepack_is_decoded() -> None:
    kind = pa.struct(
        [("id", pa.int64()), ("at", UTC_US), ("tags", pa.list_(pa.string())), ("raw", pa.binary())]
    )
    row = {"id": 1, "at": datetime(2026, 1, 2, tzinfo=UTC), "tags": ["x"], "raw": b"\x00", "other": 1}
    values = [
        msgpack.packb(row, datetime=True), b"\xc1", None, msgpack.packb([1]), msgpack.packb({"id": "x"}),
        msgpack.packb({"id": 2}) + b"\x00", msgpack.packb({}),
    ]  # fmt: skip

    found = decode(ValueFormat("msgpack", "unused"), column(values), kind)

    nothing = dict.fromkeys(["id", "at", "tags", "raw"])
    del row["other"]
    assert found.values.to_pylist() == [row, None, None, None, None, None, nothing]
    assert found.errors is not None
    assert [bool(error) for error in found.errors] == [False, True, False, True, True, True, False]


# --- Avro

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {
            "name": "from",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]},
        },
        {"name": "to", "type": ["null", "Place"]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "L"]}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
    ],
}


def test_avro_is_decoded_by_its_schema() -> None:
    given = format_of({"value.format": "avro", "value.schema": json.dumps(AVRO)})
    assert given.columns == (
        "`id` STRING, `at` TIMESTAMP, `day` DATE, `price` DECIMAL(8, 2), `from` STRUCT<`x` INT>, "
        "`to` STRUCT<`x` INT>, `size` STRING, `counts` MAP<STRING, BIGINT>"
    )
    place = pa.struct([("x", pa.int32())])
    kind = pa.struct(
        [("id", pa.string()), ("at", UTC_US), ("day", pa.date32()), ("price", pa.decimal128(8, 2)),
         ("from", place), ("to", place), ("size", pa.string()), ("counts", pa.map_(pa.string(), pa.int64()))]
    )  # fmt: skip
    row = {
        "id": "5b5c0b4c-8a3c-4a0e-9d2b-3b1d1f0c9a11", "at": datetime(2026, 1, 2, tzinfo=UTC),
        "day": date(2026, 1, 2), "price": Decimal("1.50"), "from": {"x": 1}, "to": {"x": 2}, "size": "L",
        "counts": {"a": 1},
    }  # fmt: skip
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(AVRO), row)
    value = buffer.getvalue()

    found = decode(given, column([value, value[:-1], None, value + b"\x00"]), kind)

    assert found.values.to_pylist() == [row | {"counts": [("a", 1)]}, None, None, None]
    assert found.errors is not None
    assert [bool(error) for error in found.errors] == [False, True, False, True]


@pytest.mark.parametrize("kind", [["int", "string"], "Order"])
def test_avro_that_spark_has_no_type_for_is_refused(kind: Any) -> None:
    schema = {"type": "record", "name": "Order", "fields": [{"name": "x", "type": kind}]}

    with pytest.raises(OptionError, match="Spark has no type for Avro's"):
        format_of({"value.format": "avro", "value.schema": json.dumps(schema)})
