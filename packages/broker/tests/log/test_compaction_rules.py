"""Which log is compacted, how far, and which segments become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ottla.broker.config import LogConfig
from ottla.broker.log.compaction.compaction_rules import (
    MOST_SEGMENTS,
    Bounds,
    DirtyRange,
    dirtiest,
    dirty_range,
    groups,
)
from ottla.protocol.topics import TopicPartition

NOW_MS = 1_000_000


@dataclass(frozen=True)
class Piece:
    base_offset: int
    size: int = 100
    largest_timestamp: int = 500
    first_timestamp: int = 400


FOUR = [Piece(0), Piece(10), Piece(20), Piece(30, 50)]


def range_of(segments: list[Piece] = FOUR, /, **how: Any) -> DirtyRange:
    bounds = Bounds(how.pop("cleaned", None), how.pop("start", 0), how.pop("settled", 35), 35)
    return dirty_range(segments, bounds, LogConfig(cleanup_policy=("compact",), **how), NOW_MS)


def test_everything_but_the_active_segment_of_a_new_log_is_dirty() -> None:
    assert range_of() == DirtyRange(0, 30, 0, 300)
    assert range_of().ratio == 1


def test_what_was_cleaned_is_not_dirty() -> None:
    assert range_of(cleaned=20) == DirtyRange(20, 30, 200, 100)
    assert range_of(cleaned=30) == DirtyRange(30, 30, 300, 0)
    assert range_of(cleaned=15) == DirtyRange(15, 30, 200, 200)


@pytest.mark.parametrize("cleaned", [2, 36])
def test_a_checkpoint_outside_of_the_log_counts_for_nothing(cleaned: int) -> None:
    assert range_of(cleaned=cleaned, start=5).first_dirty == 5


@pytest.mark.parametrize(("settled", "end"), [(30, 30), (29, 20), (10, 10), (9, 0)])
def test_segments_with_unsettled_records_are_left_alone(settled: int, end: int) -> None:
    assert range_of(settled=settled).first_uncleanable == end


def test_young_records_are_left_alone() -> None:
    young = [Piece(0), Piece(10, largest_timestamp=NOW_MS - 99), Piece(20), Piece(30)]

    assert range_of(young, min_compaction_lag_ms=100).first_uncleanable == 10
    assert range_of(young, min_compaction_lag_ms=98).first_uncleanable == 30
    assert range_of(young, min_compaction_lag_ms=100, cleaned=20).first_uncleanable == 30


def test_a_record_beyond_the_largest_lag_makes_a_log_due() -> None:
    config = LogConfig(cleanup_policy=("compact",), max_compaction_lag_ms=10_000)
    late = range_of(
        [Piece(0), Piece(10), Piece(20, first_timestamp=NOW_MS - 10_001), Piece(30)],
        cleaned=20,
        max_compaction_lag_ms=10_000,
    )

    assert late.overdue_ms == 1
    assert late.ratio < config.min_cleanable_dirty_ratio
    assert late.is_due(config)
    assert not late._replace(overdue_ms=0).is_due(config)
    assert not late._replace(dirty_bytes=0).is_due(config)


def test_the_dirtiest_log_that_is_due_is_chosen() -> None:
    config = LogConfig(cleanup_policy=("compact",))
    partitions = [TopicPartition("t", number) for number in range(4)]
    ranges = [DirtyRange(0, 9, 50, dirty) for dirty in (50, 51, 80, 0)]

    assert dirtiest(zip(partitions, ranges, [config] * 4, strict=True)) == (partitions[2], ranges[2])
    assert dirtiest([(partitions[0], ranges[0], config)]) is None
    assert dirtiest([]) is None


def bases(found: list[list[Piece]]) -> list[list[int]]:
    return [[one.base_offset for one in group] for group in found]


def test_segments_are_grouped_up_to_the_size_of_one() -> None:
    assert bases(groups(FOUR, 35, 200)) == [[0, 10], [20, 30]]
    assert bases(groups(FOUR, 35, 1_000)) == [[0, 10, 20, 30]]
    assert bases(groups(FOUR, 35, 10)) == [[0], [10], [20], [30]]
    assert groups([], 0, 10) == []


def test_a_group_has_not_more_segments_than_one_turn_of_the_loop_opens() -> None:
    many = [Piece(number) for number in range(2 * MOST_SEGMENTS + 1)]

    assert [len(one) for one in groups(many, len(many), 1 << 30)] == [MOST_SEGMENTS, MOST_SEGMENTS, 1]


def test_a_group_spans_no_more_offsets_than_an_index_can_hold() -> None:
    far = [Piece(0), Piece(10), Piece(2**31), Piece(2**31 + 5)]

    assert bases(groups(far, 2**31 + 9, 1_000)) == [[0, 10], [2**31, 2**31 + 5]]


def test_empty_segments_do_not_end_a_group() -> None:
    assert bases(groups([Piece(0), Piece(10, 0), Piece(20, 0)], 30, 100)) == [[0]]
    assert bases(groups([Piece(0, 0), Piece(10)], 30, 100)) == [[0, 10]]
    assert groups([Piece(0, 0)], 30, 100) == []
