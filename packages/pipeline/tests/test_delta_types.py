"""Types of Delta tables, compared with those of rows and declarations."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ottla.pipeline.jobs.delta_table import Shape, other_types, shape_of, shape_of_ddl, shapes_of

deltalake = pytest.importorskip("deltalake")


@pytest.mark.parametrize(
    ("ddl", "arrow"),
    [
        ("STRING", pa.string()), ("BOOLEAN", pa.bool_()), ("TINYINT", pa.int8()), ("SMALLINT", pa.int16()),
        ("INT", pa.int32()), ("BIGINT", pa.int64()), ("FLOAT", pa.float32()), ("DOUBLE", pa.float64()),
        ("BINARY", pa.binary()), ("DATE", pa.date32()), ("TIMESTAMP", pa.timestamp("us", "UTC")),
        ("TIMESTAMP_NTZ", pa.timestamp("us")), ("DECIMAL(8, 2)", pa.decimal128(8, 2)),
        ("decimal(9)", pa.decimal128(9, 0)),
    ],
)  # fmt: skip
def test_a_declared_type_is_that_of_its_rows(ddl: str, arrow: pa.DataType) -> None:
    schema = deltalake.Schema.from_arrow(pa.schema([("c", arrow)]))
    assert shape_of(schema.fields[0].type) == shape_of_ddl(ddl)


def test_nested_types_are_told_apart_but_not_by_nulls() -> None:
    def shapes(*fields: pa.Field) -> object:
        return shapes_of(deltalake.Schema.from_arrow(pa.schema(fields)))

    def nested(nullable: bool, number: pa.DataType) -> pa.Field:
        inner = pa.struct([pa.field("n", number, nullable=nullable)])
        return pa.field("c", pa.map_(pa.string(), pa.list_(pa.field("element", inner, nullable=nullable))))

    assert shapes(nested(True, pa.int64())) == shapes(nested(False, pa.int64()))
    assert shapes(nested(True, pa.int64())) != shapes(nested(True, pa.int32()))
    assert shape_of_ddl("ARRAY<INT>") is None


def test_what_differs_is_shown_as_delta_names_it() -> None:
    there: dict[str, Shape] = {
        "a": ("map", "string", ("array", ("struct", ("n", "long")))),
        "b": "long",
        "c": "string",
    }
    given: dict[str, Shape | None] = {"a": "string", "b": None, "c": "string", "d": "long"}
    assert list(other_types(there, given)) == [
        ("a", "has 'a' as map<string, array<struct<n: long>>>, and the rows have it as string")
    ]
