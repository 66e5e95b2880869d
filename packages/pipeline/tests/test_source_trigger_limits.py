"""Sizes of micro-batches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.source.readers import TriggerDelay, limit_batch, new_offsets
from ottla.protocol.topics import TopicPartition

ZERO, ONE, TWO = (TopicPartition("orders", number) for number in range(3))
PARTITIONS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20)


def lookup(sizes: list[tuple[int, int]]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = {TopicPartition("t", index): begun for index, (begun, _) in enumerate(sizes)}
    return start, {TopicPartition("t", index): begun + size for index, (begun, size) in enumerate(sizes)}


def test_each_partition_has_its_part_of_what_is_allowed() -> None:
    end = limit_batch({ZERO: 0, ONE: 100}, {ZERO: 30, ONE: 110}, 20)

    assert end == {ZERO: 15, ONE: 105}


def test_a_small_partition_does_not_starve() -> None:
    assert limit_batch({ZERO: 0, ONE: 0}, {ZERO: 1_000_000, ONE: 1}, 10)[ONE] == 1


def test_all_is_taken_where_it_is_allowed() -> None:
    assert limit_batch({ZERO: 0, ONE: 5}, {ZERO: 3, ONE: 5}, 3) == {ZERO: 3, ONE: 5}


@given(PARTITIONS, st.integers(1, 10**9))
def test_no_more_than_allowed_but_one_of_each_and_always_forward(
    sizes: list[tuple[int, int]], most: int
) -> None:
    start, end = lookup(sizes)

    chosen = limit_batch(start, end, most)

    assert all(start[each] <= chosen[each] <= end[each] for each in end)
    assert new_offsets(start, chosen) < most + len(sizes)
    behind = new_offsets(start, end)
    assert not behind or new_offsets(start, chosen) > 0
    if behind <= most:
        assert chosen == end


@given(PARTITIONS, st.integers(1, 50))
def test_batch_after_batch_everything_is_read(sizes: list[tuple[int, int]], parts: int) -> None:
    start, end = lookup(sizes)
    most = max(1, new_offsets(start, end) // parts)

    for _ in range(2 * parts + 2 * len(sizes) + 40):
        start = limit_batch(start, end, most)

    assert start == end


def test_a_partition_that_shrank_counts_for_nothing() -> None:
    assert new_offsets({ZERO: 10, ONE: 0}, {ZERO: 4, ONE: 2}) == 2
    assert limit_batch({ZERO: 10, ONE: 0, TWO: 0}, {ZERO: 4, ONE: 10, TWO: 10}, 4) == {
        ZERO: 4,
        ONE: 2,
        TWO: 2,
    }


def test_the_first_batch_never_waits_and_later_ones_do_until_there_is_enough() -> None:
    patience = TriggerDelay(10, 1_000)

    assert not patience.is_too_early(1, 5_000)
    assert patience.is_too_early(9, 5_100)
    assert not patience.is_too_early(10, 5_200)
    assert patience.is_too_early(9, 6_100)


def test_nobody_waits_longer_than_the_delay() -> None:
    patience = TriggerDelay(10, 1_000)
    patience.is_too_early(10, 5_000)

    assert patience.is_too_early(0, 5_999)
    assert not patience.is_too_early(0, 6_000)
    assert patience.is_too_early(0, 6_999)


def test_without_a_least_number_nothing_waits() -> None:
    assert not TriggerDelay(None, 1_000).is_too_early(0, 0)
