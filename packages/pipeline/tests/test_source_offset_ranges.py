"""The offset ranges of tasks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.source.offsets import OffsetRange, ranges_between, split
from ottla.protocol.topics import TopicPartition

ZERO, ONE, TWO = (TopicPartition("orders", number) for number in range(3))
RANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 5_000)), max_size=8).map(
    lambda sizes: [
        OffsetRange(TopicPartition("t", index), start, start + size)
        for index, (start, size) in enumerate(sizes)
    ]
)


def test_ranges_between_two_positions_are_in_order_and_not_empty() -> None:
    found = ranges_between({ONE: 0, ZERO: 2, TWO: 9}, {ONE: 3, ZERO: 2, TWO: 4})

    assert found == [OffsetRange(ONE, 0, 3)]


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 2_000))
def test_pieces_are_the_whole_and_as_many_and_as_short_as_wanted(
    whole: list[OffsetRange], least: int | None, longest: int | None
) -> None:
    pieces = split(whole, least, longest)

    for each in whole:
        mine = [piece for piece in pieces if piece.partition == each.partition]
        assert sum(map(len, mine)) == len(each)
        assert all(before.end == after.start for before, after in pairwise(mine))
        if mine:
            assert (mine[0].start, mine[-1].end) == (each.start, each.end)
            assert max(map(len, mine)) - min(map(len, mine)) <= 1
    assert all(map(len, pieces))
    if longest is not None:
        assert all(len(piece) <= longest for piece in pieces)
    if least is not None:
        assert len(pieces) >= min(least, sum(map(len, whole)))


def test_without_wishes_a_partition_is_one_piece() -> None:
    whole = [OffsetRange(ZERO, 0, 10_000), OffsetRange(ONE, 5, 6)]

    assert split(whole) == whole


def test_more_is_not_cut_than_was_asked_for() -> None:
    whole = [OffsetRange(ZERO, 0, 100), OffsetRange(ONE, 0, 100), OffsetRange(TWO, 0, 1)]

    assert split(whole, least=3) == whole
    assert len(split(whole, least=4)) in (4, 5)
