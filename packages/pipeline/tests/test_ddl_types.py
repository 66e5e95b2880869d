"""Wrong types in DDL are named before Spark sees them."""

from __future__ import annotations

import pytest

from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import given_options
from ottla.pipeline.values import RowOptions, value_format, wrong_ddl


@pytest.mark.parametrize(
    "columns",
    [
        "drink STRING, price DOUBLE",
        "a int,b Array<Map<string, struct<`x, y`: decimal(10, 2), z: array<bigint>>>>",
        "`a ``b` STRING COMMENT 'x, y', c: TIMESTAMP_NTZ",
        "t INTERVAL DAY TO SECOND, c CHAR(3), v VARCHAR(20), s STRING COLLATE UTF8_LCASE, d dec(3)",
    ],
)
def test_columns_that_spark_knows_pass(columns: str) -> None:
    assert list(wrong_ddl(columns)) == []


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("drink STRNG, price DOUBLE", ["'STRNG' is not a type; did you mean STRING? (of 'drink')"]),
        ("a ARRAY<MAP<STRING, NUMBER>>", ["'NUMBER' is not a type"]),
        ("a STRUCT<b: INT, c: TXT>", ["'TXT' is not a type"]),
        ("drink", ["'drink' has no type: drink STRING"]),
        ("a INT,, b INT", ["'a INT,, b INT' has an empty place between two commas, or names no column"]),
        ("id int64, x float64", ["'int64' is not a type", "'float64' is not a type"]),
        ('{"type": "record"}', ["'\"record\"}' is not a type"]),
    ],
)  # fmt: skip
def test_wrong_words_are_named(columns: str, said: list[str]) -> None:
    found = list(wrong_ddl(columns))
    assert len(found) == len(said)
    assert [each[: len(wanted)] for each, wanted in zip(found, said, strict=True)] == said


@pytest.mark.parametrize("kind", ["json", "msgpack"])
def test_an_option_with_a_wrong_word_is_named_with_it(kind: str) -> None:
    options = given_options(RowOptions, {"value.format": kind, "value.schema": "drink STRNG"})
    with pytest.raises(
        OptionError, match=r"option 'value\.schema': 'STRNG' is not a type; did you mean STRING"
    ):
        value_format(RowOptions(**options))
