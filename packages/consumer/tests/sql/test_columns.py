"""The columns of a topic's table, from a sample of its values."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

duckdb: Any = pytest.importorskip("duckdb", reason="SQL needs duckdb")
import msgspec  # noqa: E402
import pyarrow as pa  # noqa: E402

from ottla.consumer.sql.columns import (  # noqa: E402
    DOCUMENT,
    Field,
    TableColumns,
    as_document,
    detected_format,
    infer_columns,
)
from ottla.consumer.sql.errors import query_failed  # noqa: E402


def inferred(*values: object) -> dict[str, str]:
    sample = [json.dumps(value).encode() for value in values]
    return {field.name: field.type for field in infer_columns("t", [], sample).fields}


def read(field: Field, *documents: str, lenient: bool = False) -> list[Any]:
    with duckdb.connect() as connection:
        connection.register("given", pa.table({"value": list(documents)}))
        sql = f"SELECT {field.sql('value', lenient=lenient)} FROM given"
        return [found for (found,) in connection.sql(sql).fetchall()]


def test_fields_have_the_types_that_duckdb_infers_for_a_file(tmp_path: Path) -> None:
    file = tmp_path / "at.json"
    file.write_text('{"at": "2026-01-31T08:00:00Z"}')
    with duckdb.connect() as connection:  # a time with a zone is one without before DuckDB 2
        of_time = str(connection.read_json(str(file)).types[0])

    assert inferred(
        {"n": -1, "x": 1.5, "s": "a", "ok": True, "day": "2026-01-31", "at": "2026-01-31T08:00:00Z"},
        {"n": 2, "nested": {"a": 1, "b": ["x"]}, "mixed": 1, "none": None},
        {"mixed": "text"},
    ) == {
        "n": "BIGINT",
        "x": "DOUBLE",
        "s": "VARCHAR",
        "ok": "BOOLEAN",
        "day": "DATE",
        "at": of_time,
        "nested": "STRUCT(a BIGINT, b VARCHAR[])",
        "mixed": "JSON",
        "none": "JSON",
    }


def test_a_field_with_the_name_of_another_column_gets_one_of_its_own() -> None:
    names = inferred({"offset": 1, "Value": 2, "a": 3, "A": 4, "value_A": 5, "": 6})
    assert list(names) == ["value_offset", "value_Value", "a", "value_A", "value_value_A", "value_"]


def test_the_format_of_values_is_what_most_of_them_have() -> None:
    packed = msgspec.msgpack.encode({"a": 1})
    assert detected_format([b'{"a": 1}', b'{"b": 2}', b"broken"], None) == "json"
    assert detected_format([packed, packed], None) == "msgpack"
    assert detected_format([b"plain", "wörter".encode()], None) == "text"
    assert detected_format([b"plain", b"\xff\xfe"], None) == "bytes"
    assert detected_format([b"\0\0\0\0\1x"] * 2, lambda value: {}) == "avro"
    assert detected_format([], None) == "text"


def test_msgpack_with_bytes_and_times_becomes_a_document() -> None:
    value = msgspec.msgpack.encode(
        {"id": b"\xff\xfe", "at": datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC), "big": 2**64 - 1}
    )
    document = as_document(value, "msgpack", None)
    assert document == b'{"id":"//4=","at":"2026-01-31T08:00:00Z","big":18446744073709551615}'
    assert as_document(b"\xc1", "msgpack", None) is None


@pytest.mark.parametrize(
    ("kind", "document", "expected"),
    [
        ("BIGINT", '{"f": 3}', 3),
        ("BIGINT", '{"f": null}', None),
        ("BIGINT", "{}", None),
        ("VARCHAR", '{"f": {"a": 1}}', '{"a":1}'),
        ("JSON", '{"f": [1]}', "[1]"),
        ("JSON", '{"f": null}', None),
        ("STRUCT(a BIGINT, b VARCHAR)", '{"f": {"a": 1}}', {"a": 1, "b": None}),
        ("DATE", '{"f": "2026-01-31"}', datetime.date(2026, 1, 31)),
    ],
)
def test_a_field_is_read_as_its_type(kind: str, document: str, expected: object) -> None:
    assert read(Field("f", "f", kind), document) == [expected]


@pytest.mark.parametrize(
    ("kind", "document", "message"),
    [
        ("BIGINT", '{"f": 1.5}', "it's has a fraction: 1.5"),
        ("BIGINT", '{"f": 1e-30}', "it's has a fraction: 1e-30"),
        ("BIGINT", '{"f": "15E-1"}', "it's has a fraction: 15E-1"),
        ("BIGINT", '{"f": "x"}', "Could not convert string 'x'"),
        ("DATE", '{"f": "soon"}', "soon"),
        ("VARCHAR", "no json", "Malformed JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_and_null_with_lenient(
    kind: str, document: str, message: str
) -> None:
    field = Field("it's", "f", kind)
    with pytest.raises(duckdb.Error, match=message):
        read(field, document)
    assert read(field, document, '{"f": null}', lenient=True) == [None, None]


def test_any_key_of_json_is_reached() -> None:
    keys = ["a.b", "a/b", "~", "it's", '"', "$", "0", "*"]
    sample = [json.dumps({key: number for number, key in enumerate(keys)}).encode()]
    columns = infer_columns("t", [], sample)
    with duckdb.connect() as connection:
        connection.register("records of t", _records(columns, sample))
        (row,) = connection.sql(columns.select("records of t", lenient=False)).fetchall()
    assert row[-len(keys) :] == tuple(range(len(keys)))


def _records(columns: TableColumns, values: list[bytes]) -> pa.Table:
    count = len(values)
    given = {DOCUMENT: [[value.decode()] for value in values]}
    return pa.table(
        {name: given.get(name, [None] * count) for name in columns.scanned.names}, schema=columns.scanned
    )


def test_errors_are_one_line_and_say_what_to_change() -> None:
    text = "Conversion Error: Could not convert string 'x' to INT64\n\nLINE 1: SELECT \"a\"\n   ^"
    assert str(query_failed(text, "")) == (
        "Could not convert string 'x' to INT64; a value does not fit the sample: --sample N reads more of "
        "it, --lenient makes such values NULL"
    )
    wrong = str(query_failed('Parser Error: syntax error at or near "FROM"', "SELECT offset FROM t"))
    assert wrong.endswith('offset is a word of SQL, so write "offset" in quotes')
