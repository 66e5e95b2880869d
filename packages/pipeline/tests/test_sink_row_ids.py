"""Headers that identify a row."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.sink.row_ids import EqualRowCounter, RowHashes, RowIds, row_bytes
from ottla.pipeline.sink.tasks import TaskIdentity

PLACE = TaskIdentity("q", 7, 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us")),
    ]
)

headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}),
    max_size=3,
)
rows = st.fixed_dictionaries(
    {
        "key": st.none() | st.text(max_size=3),
        "value": st.none() | st.binary(max_size=5) | st.integers(1_000, 1_100).map(bytes),
        "headers": st.none() | headers,
        "partition": st.none() | st.integers(-1, 1),
        "timestamp": st.none() | st.datetimes(),
    }
)


def batch(found: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(found, SCHEMA)


def ids(row: str) -> list[dict[str, Any]]:
    return [
        {"key": "ottla-query", "value": b"q"},
        {"key": "ottla-batch", "value": b"7"},
        {"key": "ottla-partition", "value": b"3"},
        {"key": "ottla-row", "value": row.encode()},
    ]


def names(found: pa.RecordBatch) -> list[str]:
    """Return the ids of the rows, after checking the headers of their task."""
    every = [own[-1]["value"].decode() for own in found.column("headers").to_pylist()]
    assert [own[-4:] for own in found.column("headers").to_pylist()] == [ids(each) for each in every]
    return every


def test_rows_without_headers_get_those_of_their_place() -> None:
    given_rows = pa.record_batch({"value": ["a", "b"], "partition": pa.array([1, 2], pa.int32())})

    found = RowIds(PLACE).added(given_rows)

    assert found.select(["value", "partition"]).equals(given_rows)
    assert [len(own) for own in found.column("headers").to_pylist()] == [4, 4]
    assert [name[32:] for name in names(found)] == ["-0", "-0"]
    assert len(set(names(found))) == 2


def test_a_row_has_the_same_id_in_every_process_and_version() -> None:
    long, short = b"x" * 5_000, b"one coffee"
    found = RowIds(PLACE).added(pa.record_batch({"key": ["josef", None], "value": [short, long]}))

    assert names(found) == ["64e8afa65af1b12e402a5b5eb3d7f452-0", "41c149e2a41828d1c8f1ccb09249430b-0"]


@settings(deadline=None)
@given(st.lists(st.none() | headers), st.integers(0, 5))
def test_rows_keep_the_headers_they_have(own: list[Any], skipped: int) -> None:
    column = pa.array(own, HEADERS).slice(min(skipped, len(own)))

    found = RowIds(PLACE).added(pa.record_batch({"headers": column}))

    rest = [each or [] for each in own[skipped:]]
    assert found.column("headers").to_pylist() == [
        each + ids(name) for each, name in zip(rest, names(found), strict=True)
    ]


def test_headers_of_text_are_taken_as_bytes() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
    column = pa.array([[{"key": "k", "value": "ü"}]], kind)

    found = RowIds(PLACE).added(pa.record_batch({"headers": column}))

    assert found.column("headers").to_pylist()[0][0] == {"key": "k", "value": "ü".encode()}


@settings(deadline=None)
@given(st.lists(rows, max_size=20), st.randoms(use_true_random=False), st.integers(1, 7))
def test_rows_in_another_order_and_other_batches_have_the_same_ids(
    found: list[Any], chance: random.Random, size: int
) -> None:
    found += found[: len(found) // 2]  # many rows are equal
    first = names(RowIds(PLACE).added(batch(found)))
    again = RowIds(PLACE)
    order = chance.sample(range(len(found)), len(found))
    second: list[tuple[str, str]] = []
    for start in range(0, len(order), size):
        piece = [found[task] for task in order[start : start + size]]
        second += zip(names(again.added(batch(piece))), map(shown, piece), strict=True)

    assert Counter(second) == Counter(zip(first, map(shown, found), strict=True))
    assert len(set(first)) == len(found)


def shown(row: dict[str, Any]) -> str:
    """Return a row so that equal ones compare equal: no headers equal an empty list."""
    return repr([row[name] if name != "headers" else row[name] or [] for name in SCHEMA.names])


@settings(deadline=None)
@given(st.lists(rows, max_size=20))
def test_rows_that_differ_have_other_bytes_and_other_hashes(found: list[Any]) -> None:
    texts = [each.as_py() for each in row_bytes(batch(found))]
    hashes = [bytes(each) for each in RowHashes(b"q").of(batch(found))]

    assert {len(text) % 4 for text in texts} <= {0}
    for one, text, hashed in zip(found, texts, hashes, strict=True):
        for other, other_text, other_hashed in zip(found, texts, hashes, strict=True):
            is_same = shown(one) == shown(other)
            assert is_same == (text == other_text) == (hashed == other_hashed)


def test_the_topic_of_a_row_counts() -> None:
    given_rows = pa.record_batch({"value": ["a", "a"]})

    found = RowIds(PLACE).added(given_rows, pa.array(["orders", "bills"]))

    assert found.schema.names == ["value", "headers"]
    assert len({name[:32] for name in names(found)}) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_texts_have_the_id_of_their_bytes(kind: pa.DataType) -> None:
    value = pa.array([b"a"], pa.binary()).cast(kind)

    assert names(RowIds(PLACE).added(pa.record_batch({"value": value}))) == names(
        RowIds(PLACE).added(pa.record_batch({"value": [b"a"]}))
    )


def test_pieces_of_a_longer_column_are_hashed_for_themselves() -> None:
    whole = pa.record_batch({"value": [b"%d" % number for number in range(10)]})

    assert (RowHashes(b"q").of(whole.slice(3, 4)) == RowHashes(b"q").of(whole)[3:7]).all()


def test_another_query_has_other_hashes() -> None:
    given_rows = pa.record_batch({"value": [b"a", b"x" * 2_000]})

    assert not (RowHashes(b"q").of(given_rows) == RowHashes(b"r").of(given_rows)).all(axis=1).any()


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 5) | st.just(2**64 - 1), max_size=12), max_size=12))
def test_repeats_are_counted_over_all_batches(batches: list[list[int]]) -> None:
    repeats, seen = EqualRowCounter(), Counter[int]()
    for keys in batches:
        expected = []
        for key in keys:
            expected.append(seen[key])
            seen[key] += 1
        assert repeats.of(np.array(keys, np.uint64)).tolist() == expected
