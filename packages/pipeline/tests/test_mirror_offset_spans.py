"""Offset mapping: spans, their translation, and their storage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.jobs.mirroring.offset_mapping import MappedSpan, MappingUnreadable, OffsetMapping, Origin
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans, spans_of
from ottla.protocol.topics import TopicPartition

ASCENDING = st.lists(st.integers(0, 300), unique=True, max_size=60).map(sorted)


def test_offsets_without_gaps_are_one_span() -> None:
    assert spans_of([5, 6, 7], 100) == [Span(5, 100, 3)]
    assert spans_of([5, 7, 8, 11], 100) == [Span(5, 100, 1), Span(7, 101, 2), Span(11, 103, 1)]
    assert spans_of([], 100) == []


def test_a_span_that_goes_on_becomes_longer() -> None:
    spans = Spans([Span(0, 10, 0)])
    assert spans.add([Span(0, 10, 3)]) == [Span(0, 10, 3)]
    assert spans.add([Span(3, 13, 2), Span(7, 15, 1)]) == [Span(0, 10, 5), Span(7, 15, 1)]
    assert spans.last == Span(7, 15, 1)
    assert len(spans) == 2


def test_before_between_and_behind_spans() -> None:
    spans = Spans([Span(10, 0, 3), Span(20, 3, 2)])
    assert [spans.translate(each) for each in (0, 10, 12, 13, 19, 20, 21, 22, 99)] == [
        0,
        0,
        2,
        3,
        3,
        3,
        4,
        5,
        5,
    ]
    assert Spans().translate(5) is None


@given(ASCENDING, st.integers(0, 1_000), st.integers(0, 310), st.lists(st.integers(1, 9), min_size=1))
def test_a_reader_goes_on_at_the_first_record_it_has_not_seen(
    offsets: list[int], first: int, at: int, rounds: list[int]
) -> None:
    """With any gaps and rounds: the copy of the first record at or behind the position."""
    spans, done, number = Spans([Span(0, first, 0)]), 0, 0
    while done < len(offsets):
        size = rounds[number % len(rounds)]
        spans.add(spans_of(offsets[done : done + size], first + done))
        done, number = done + size, number + 1
    read_before = sum(each < at for each in offsets)
    assert spans.translate(at) == first + read_before


@given(ASCENDING, st.integers(0, 310), st.integers(1, 5))
def test_thinned_out_spans_leave_nothing_out(offsets: list[int], at: int, most: int) -> None:
    spans = Spans(spans_of(offsets, 0))
    before = set(spans)
    dropped = spans.thin_out(most)
    assert before == set(spans) | set(dropped)
    assert not dropped or len(spans) <= len(before) - len(dropped)
    found = spans.translate(at)
    assert (found is None) == (not offsets)
    assert found is None or found <= sum(each < at for each in offsets)


def test_new_spans_are_exact_after_older_ones_were_thinned_out() -> None:
    offsets = range(0, 200, 2)
    spans = Spans(spans_of(list(offsets), 0))
    dropped = spans.thin_out(10)
    assert dropped
    assert [spans.translate(each) for each in range(180, 200, 2)] == list(range(90, 100))
    assert spans.translate(0) == 0


@given(ASCENDING.filter(bool), st.integers(0, 100), st.integers(0, 70))
def test_cut_spans_leave_no_trace(offsets: list[int], first: int, kept: int) -> None:
    kept = min(kept, len(offsets))
    spans = Spans([Span(0, first, 0)])
    spans.add(spans_of(offsets, first))
    before = set(spans)
    changed, gone = spans.cut(first + kept)
    expected = Spans([Span(0, first, 0)])
    expected.add(spans_of(offsets[:kept], first))
    assert list(spans) == list(expected)
    assert before - set(gone) == set(spans) - set(changed) | {
        each for each in before for other in changed if each.source == other.source
    }


def test_spans_since_an_offset_of_the_copy() -> None:
    spans = Spans([Span(0, 0, 5), Span(7, 5, 5), Span(20, 10, 5)])
    assert spans.since(12) == [Span(20, 10, 5)]
    assert spans.since(5) == [Span(7, 5, 5), Span(20, 10, 5)]
    assert spans.since(99) == [Span(20, 10, 5)]
    assert Spans().since(0) == []


ORDERS = TopicPartition("orders", 3)


def taken(*records: tuple[bytes, bytes | None]) -> OffsetMapping:
    found = OffsetMapping("backup")
    for key, value in records:
        found.take(key, value)
    return found


def test_a_mapping_is_what_its_records_say() -> None:
    begun, longer = (
        MappedSpan("backup", ORDERS, Span(7, 9, 2)),
        MappedSpan("backup", ORDERS, Span(7, 9, 5), 11),
    )
    other, gone = MappedSpan("other", ORDERS, Span(0, 0, 1)), MappedSpan("backup", ORDERS, Span(99, 14, 1))
    found = taken(
        (begun.key(), begun.value("north.orders")),
        (gone.key(), gone.value("north.orders")),
        (other.key(), other.value("orders")),
        (gone.key(), None),
        (longer.key(), longer.value("north.orders")),
    )
    assert list(found.spans[ORDERS]) == [Span(7, 9, 5)], "a span that grows replaces itself"
    assert found.sure(ORDERS) == 11
    assert found.sure(TopicPartition("orders", 0)) is None
    assert found.last(TopicPartition("orders", 0)) is None


def test_of_a_mapping_a_task_needs_what_was_begun() -> None:
    spans = [Span(0, 0, 5), Span(7, 5, 5), Span(20, 10, 5)]
    found = OffsetMapping("backup")
    found.spans = {ORDERS: Spans(spans), TopicPartition("orders", 4): Spans(spans)}
    assert list(found.part([ORDERS]).spans[ORDERS]) == spans[2:]
    found.set_sure(ORDERS, 7)
    part = found.part([ORDERS])
    assert part.spans.keys() == {ORDERS}
    assert list(part.spans[ORDERS]) == spans[1:]
    assert part.sure(ORDERS) == 7


def test_a_mapping_knows_where_copies_come_from() -> None:
    north = Origin("mirror", ("cluster-a", "cluster-b"))
    assert taken((Origin.key("orders"), north.value())).origins == {"orders": north}
    assert taken((Origin.key("orders"), north.value()), (Origin.key("orders"), None)).origins == {}


@pytest.mark.parametrize("key", [None, b"", b"5", b"hello", b'{"a": 1}'])
def test_foreign_records_are_rejected(key: bytes | None) -> None:
    with pytest.raises(MappingUnreadable, match="mapping_topic must name a dedicated topic"):
        OffsetMapping("backup").take(key, b"{}")
