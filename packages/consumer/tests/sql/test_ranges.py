"""Filters of DuckDB as ranges of offsets: no record that passes is left out, and few others are read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("duckdb", reason="SQL needs duckdb")
import pyarrow as pa
import pyarrow.dataset as ds

from ottla.consumer.sql.ranges import BOUNDED, TIMESTAMP, earliest_ms, wanted_offsets

PARTITION, OFFSET, TIME = ds.field("partition"), ds.field("offset"), ds.field("timestamp")
THERE = {0: range(100), 1: range(5, 50), 2: range(0), 3: range(10, 20)}


def at_us(time_us: int) -> Any:
    return pa.scalar(time_us, TIMESTAMP)


def offsets(where: Any) -> dict[int, range]:
    return wanted_offsets(where, THERE, BOUNDED)


def test_without_a_filter_all_that_is_there_is_read() -> None:
    assert offsets(None) == {0: range(100), 1: range(5, 50), 3: range(10, 20)}
    assert earliest_ms(None, BOUNDED) is None


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (PARTITION == 1, {1: range(5, 50)}),
        (PARTITION.isin([0, 3, 7]), {0: range(100), 3: range(10, 20)}),
        (PARTITION != 0, {1: range(5, 50), 3: range(10, 20)}),
        (OFFSET == 15, {0: range(15, 16), 1: range(15, 16), 3: range(15, 16)}),
        ((OFFSET >= 15) & (OFFSET < 40), {0: range(15, 40), 1: range(15, 40), 3: range(15, 20)}),
        (
            ((PARTITION == 0) & (OFFSET > 90)) | ((PARTITION == 1) & (OFFSET <= 7)),
            {0: range(91, 100), 1: range(5, 8)},
        ),
        (OFFSET > 1_000, {}),
    ],
)
def test_a_filter_becomes_the_offsets_that_it_leaves(where: Any, wanted: dict[int, range]) -> None:
    assert offsets(where) == wanted


def test_the_start_in_time_is_rounded_down_to_the_clock_of_records() -> None:
    assert (
        earliest_ms((at_us(1_700_000_000_123_456) <= TIME) & (PARTITION == 1), BOUNDED) == 1_700_000_000_123
    )
    assert earliest_ms(at_us(1_700_000_000_000_000) > TIME, BOUNDED) is None


simple = st.one_of(
    st.builds(lambda at: at == PARTITION, st.integers(0, 4)),
    st.builds(lambda found: PARTITION.isin(found), st.lists(st.integers(0, 4), min_size=1, max_size=3)),
    *(
        st.builds(lambda at, compare=compare: compare(OFFSET, at), st.integers(-2, 30))
        for compare in (
            lambda field, at: field < at,
            lambda field, at: field >= at,
            lambda field, at: field == at,
            lambda field, at: field != at,
        )
    ),
    st.builds(lambda at: at_us(at * 500) <= TIME, st.integers(0, 60)),
    st.builds(lambda at: at_us(at * 500) > TIME, st.integers(0, 60)),
)
filters = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=6,
)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25), st.integers(1, 30)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(filters, rows)
def test_no_record_that_passes_a_filter_is_outside_of_its_ranges(
    where: Any, found: list[tuple[int, int, int]]
) -> None:
    there = {partition: range(26) for partition in range(4)}
    table = pa.table(
        {
            "partition": pa.array([partition for partition, _, _ in found], pa.int32()),
            "offset": pa.array([offset for _, offset, _ in found], pa.int64()),
            "timestamp": pa.array([time * 1_000 for _, _, time in found], TIMESTAMP),
        }
    )

    wanted, since_ms = wanted_offsets(where, there, BOUNDED), earliest_ms(where, BOUNDED)

    for row in table.filter(where).to_pylist():
        assert row["offset"] in wanted[row["partition"]]
        assert since_ms is None or row["timestamp"].timestamp() * 1_000 >= since_ms
