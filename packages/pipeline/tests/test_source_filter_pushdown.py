"""Filters that reduce what is read: no matching record may be skipped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from ottla.pipeline.source.filter_pushdown import push
from ottla.pipeline.source.offset_ranges import OffsetRange
from ottla.protocol.topics import TopicPartition

ORDERS, BILLS = TopicPartition("orders", 0), TopicPartition("bills", 3)
COMPARED = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
}


def kept(*filters: Filter) -> list[TopicPartition]:
    narrowed, left = push(filters)
    assert not left
    return [each for each in (ORDERS, BILLS) if narrowed.keeps(each)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (EqualTo(("topic",), "orders"), [ORDERS]),
        (Not(EqualTo(("topic",), "orders")), [BILLS]),
        (In(("topic",), ("bills", "x")), [BILLS]),
        (Not(In(("topic",), ("bills", "x"))), [ORDERS]),
        (GreaterThan(("topic",), "bills"), [ORDERS]),
        (StringStartsWith(("topic",), "bi"), [BILLS]),
        (StringEndsWith(("topic",), "ers"), [ORDERS]),
        (StringContains(("topic",), "ll"), [BILLS]),
        (IsNotNull(("topic",)), [ORDERS, BILLS]),
        (Not(IsNotNull(("topic",))), []),
        (EqualTo(("partition",), 3), [BILLS]),
        (LessThan(("partition",), 3), [ORDERS]),
        (In(("partition",), (0, 3)), [ORDERS, BILLS]),
        (EqualNullSafe(("partition",), 0), [ORDERS]),
    ],
)
def test_a_filter_on_topic_or_partition_is_done_with(given: Filter, wanted: list[TopicPartition]) -> None:
    assert kept(given) == wanted


def test_all_filters_count() -> None:
    assert kept(EqualTo(("topic",), "bills"), EqualTo(("partition",), 0)) == []


@pytest.mark.parametrize(
    "given",
    [
        EqualTo(("value",), b"1"),
        EqualTo(("key",), b"1"),
        EqualTo(("value", "topic"), "orders"),
        IsNull(("topic",)),
        Not(Not(EqualTo(("topic",), "orders"))),
        Not(EqualTo(("offset",), 3)),
        In(("offset",), (3, 4)),
        In(("topic",), ("orders", None)),
        Not(In(("topic",), ("orders", None))),
        LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
        Not(GreaterThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC))),
    ],
)
def test_other_filters_are_left_to_spark_and_narrow_nothing(given: Filter) -> None:
    narrowed, left = push([given])

    assert left == [given]
    assert narrowed.keeps(ORDERS)
    assert narrowed.keeps(BILLS)
    assert narrowed.narrow(OffsetRange(ORDERS, 0, 100)) == OffsetRange(ORDERS, 0, 100)
    assert narrowed.since_ms is None


@given(
    st.lists(st.tuples(st.sampled_from(sorted(COMPARED, key=str)), st.integers(-5, 25)), max_size=4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_just_the_offsets_that_pass_are_read(filters: list[tuple[Any, int]], start: int, size: int) -> None:
    narrowed, left = push([kind(("offset",), value) for kind, value in filters])
    found = narrowed.narrow(OffsetRange(ORDERS, start, start + size))

    wanted = [
        offset
        for offset in range(start, start + size)
        if all(COMPARED[kind](offset, value) for kind, value in filters)
    ]
    assert not left
    assert list(range(found.start, found.end)) == wanted


@given(
    st.sampled_from((EqualTo, GreaterThan, GreaterThanOrEqual)),
    st.datetimes(datetime(1960, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.integers(-3, 3),
)
def test_no_record_that_passes_a_timestamp_is_before_what_is_read(
    kind: Any, time: datetime, ms_apart: int
) -> None:
    narrowed, left = push([kind(("timestamp",), time)])
    whole_ms = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    for record_ms in (whole_ms + ms_apart, -1):
        record_time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=record_ms)
        if COMPARED[kind](record_time, time):
            assert narrowed.since_ms is None or narrowed.since_ms <= record_ms

    assert len(left) == 1
    assert narrowed.since_ms is None or narrowed.since_ms > 0


def test_the_latest_of_several_times_counts() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

    narrowed, _ = push([GreaterThan(("timestamp",), late), GreaterThanOrEqual(("timestamp",), early)])

    assert narrowed.since_ms == int(late.timestamp() * 1_000)
