"""Headers that name a row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.sink.identity import Place
from ottla.pipeline.sink.row_ids import with_row_ids

PLACE = Place("q", 7, 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
    max_size=3,
)


def ids(number: int) -> list[dict[str, Any]]:
    return [
        {"key": "ottla-query", "value": b"q"},
        {"key": "ottla-batch", "value": b"7"},
        {"key": "ottla-partition", "value": b"3"},
        {"key": "ottla-row", "value": b"%d" % number},
    ]


def test_rows_without_headers_get_those_of_their_place() -> None:
    rows = pa.record_batch({"value": ["a", "b"], "partition": pa.array([1, 2], pa.int32())})

    found = with_row_ids(rows, PLACE, 10)

    assert found.column("headers").to_pylist() == [ids(10), ids(11)]
    assert found.select(["value", "partition"]).equals(rows)


@settings(deadline=None)
@given(st.lists(st.none() | headers), st.integers(0, 5), st.integers(0, 10**12))
def test_rows_keep_the_headers_they_have(own: list[Any], skipped: int, first: int) -> None:
    column = pa.array(own, HEADERS).slice(min(skipped, len(own)))

    found = with_row_ids(pa.record_batch({"headers": column}), PLACE, first)

    expected = [(each or []) + ids(first + number) for number, each in enumerate(own[skipped:])]
    assert found.column("headers").to_pylist() == expected


def test_headers_of_text_are_taken_as_bytes() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    column = pa.array([[{"key": "k", "value": "ü"}]], kind)

    found = with_row_ids(pa.record_batch({"headers": column}), PLACE, 0)

    assert found.column("headers").to_pylist() == [[{"key": "k", "value": "ü".encode()}, *ids(0)]]
