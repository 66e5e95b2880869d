"""The progress of a partition's copy, and its recovery."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans
from ottla.pipeline.jobs.mirroring.partition_copy import (
    CopyLost,
    ForeignRecords,
    PartitionCopy,
    RecoveredCopy,
    by_partition,
    recover_copy,
    with_partition,
)
from ottla.protocol.topics import TopicPartition

COPY = TopicPartition("copy", 0)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    {
        "key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("ms", "UTC"), "headers": HEADERS,
        "offset": pa.int64(), "topic": pa.string(), "partition": pa.int32(),
    }
)  # fmt: skip


def rows(offsets: list[int], topic: str = "orders", partition: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": None if number % 3 == 0 else b"k%d" % number,
                "value": b"v%d" % number, "timestamp": number,
                "headers": [{"key": "h", "value": None}] if number % 2 else [], "offset": number,
                "topic": topic, "partition": partition,
            }
            for number in offsets
        ],
        schema=SCHEMA,
    )  # fmt: skip


def copied(originals: list[int], first: int) -> pa.RecordBatch:
    """Return records as the copy has them, with offsets of its own."""
    found = rows(originals)
    at = found.schema.get_field_index("offset")
    return found.set_column(at, "offset", pa.array(range(first, first + len(originals)), pa.int64()))


def recovered(spans: list[Span], sure: int | None, end: int) -> RecoveredCopy:
    return recover_copy(COPY, Spans(spans), sure, end)


def test_rows_become_spans_where_they_are_written() -> None:
    copy = PartitionCopy(COPY, 2, 12)
    assert copy.planned(rows([2, 3, 5])) == [Span(2, 12, 2), Span(5, 14, 1)]
    assert copy.written(rows([2, 3, 5]), 12, 14, as_planned=True) == [Span(2, 12, 2), Span(5, 14, 1)]
    assert (copy.next_source, copy.next_target) == (6, 15)


def test_ends_of_transactions_have_offsets_too() -> None:
    copy = PartitionCopy(COPY, 2, 12)
    assert copy.written(rows([2, 3]), 13, 14, as_planned=False) == [Span(2, 13, 2)]
    assert copy.written(rows([4]), 16, 16, as_planned=False) == [Span(4, 16, 1)]


def test_a_repeated_batch_is_skipped() -> None:
    copy = PartitionCopy(COPY, 4, 14)
    assert copy.left(rows([2, 3, 4, 5])).column("offset").to_pylist() == [4, 5]
    assert copy.left(rows([2, 3])).num_rows == 0
    assert copy.left(rows([])).num_rows == 0


@pytest.mark.parametrize(("first", "last"), [(11, 12), (13, 14), (12, 14)])
def test_foreign_records_in_between_are_noticed(first: int, last: int) -> None:
    with pytest.raises(ForeignRecords):
        PartitionCopy(COPY, 2, 12).written(rows([2, 3]), first, last, as_planned=True)


@pytest.mark.parametrize(("first", "last"), [(11, 12), (12, 14)])
def test_they_are_in_transactions_too(first: int, last: int) -> None:
    with pytest.raises(ForeignRecords):
        PartitionCopy(COPY, 2, 12).written(rows([2, 3]), first, last, as_planned=False)


def test_all_that_was_planned_is_written() -> None:
    found = recovered([Span(0, 10, 4), Span(5, 14, 1)], 12, 15)
    assert (found.changed, found.gone, found.next_source, found.next_target) == ((), (), 6, 15)
    assert (found.first_source, found.first_target) == (2, 12)


def test_planned_spans_that_were_not_written_are_cut() -> None:
    found = recovered([Span(0, 10, 4), Span(5, 14, 1)], 12, 13)
    assert (found.changed, found.gone) == ((Span(0, 10, 3),), (Span(5, 14, 1),))
    assert (found.next_source, found.next_target) == (3, 13)
    found = recovered([Span(0, 10, 2), Span(5, 12, 3)], 12, 12)
    assert (found.changed, found.gone, found.next_source) == ((), (Span(5, 12, 3),), 2)


def test_the_first_span_says_where_a_partition_begins_and_stays() -> None:
    assert recovered([Span(7, 0, 5)], 0, 0).changed == (Span(7, 0, 0),)
    assert recovered([Span(7, 0, 0)], None, 0).next_source == 7


@pytest.mark.parametrize(("sure", "end", "expected"), [(None, 11, 12), (11, 10, 11)])
def test_a_copy_that_lost_records_is_refused(sure: int | None, end: int, expected: int) -> None:
    with pytest.raises(CopyLost, match=f"ends at offset {end}, but had records up to {expected}"):
        recovered([Span(0, 10, 2)], sure, end)


def test_the_copy_is_held_against_the_original() -> None:
    begun = recovered([Span(0, 10, 4), Span(5, 14, 2)], 12, 15)
    begun.check(copied([2, 3, 5], 12), rows([2, 3, 5]))
    with pytest.raises(ForeignRecords, match="at offset 13 that this mirror did not write"):
        begun.check(copied([2, 4, 5], 12), rows([2, 3, 5]))


def test_records_that_compaction_removed_on_either_side_are_ignored() -> None:
    begun = recovered([Span(0, 10, 4), Span(5, 14, 2)], 12, 16)
    theirs = copied([2, 3, 5, 6], 12)
    begun.check(theirs.take(pa.array([1, 3])), rows([2, 3, 5, 6]))
    begun.check(theirs, rows([3, 6]))
    begun.check(theirs.take(pa.array([0])), rows([6]))
    begun.check(theirs.slice(0, 0), rows([2]))
    with pytest.raises(ForeignRecords, match="at offset 15"):
        begun.check(copied([2, 3, 5, 7], 12), rows([3, 6]))


@given(
    st.lists(st.integers(0, 60), unique=True, min_size=1).map(sorted), st.integers(1, 7), st.integers(0, 60),
    st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)),
)  # fmt: skip
def test_killed_anywhere_each_record_is_written_once(
    offsets: list[int], size: int, kill: int, lost_here: set[int], lost_there: set[int]
) -> None:
    """A kill after `kill` records, with more planned; then compaction on both sides."""
    spans, copy, done = Spans([Span(0, 100, 0)]), PartitionCopy(COPY, 0, 100), 0
    sure: int | None = None
    while done < len(offsets) and (done + size <= kill):
        some = rows(offsets[done : done + size])
        spans.add(copy.planned(some))
        sure = copy.next_target
        copy.written(some, 100 + done, 100 + done + some.num_rows - 1, as_planned=True)
        done += some.num_rows
    planned = rows(offsets[done : done + size])
    sure = copy.next_target if planned.num_rows else sure
    spans.add(copy.planned(planned))
    written = min(max(kill, done), done + planned.num_rows)

    begun = recover_copy(COPY, spans, sure, 100 + written)
    ahead = range(begun.first_target - 100, written)
    theirs = copied(offsets[ahead.start : ahead.stop], begun.first_target)
    kept = pa.array([at for at, number in enumerate(ahead) if number not in lost_there], pa.int64())
    left = [each for each in offsets if each >= begun.first_source and each not in lost_here]
    begun.check(theirs.take(kept), rows([each for each in left if each < begun.next_source]))
    again = PartitionCopy(COPY, begun.next_source, begun.end)
    rest = again.left(rows([each for each in offsets if each not in lost_here]))

    assert rest.column("offset").to_pylist() == [each for each in offsets[written:] if each not in lost_here]
    for number, each in enumerate(offsets[:written]):
        assert spans.translate(each) == 100 + number


def test_rows_are_sorted_by_partition_in_their_order() -> None:
    parts = [rows([1, 2]), rows([7], partition=1), rows([3]), rows([1], topic="bills")]
    whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    found = {str(each): some.column("offset").to_pylist() for each, some in by_partition(whole).items()}
    assert found == {"orders-0": [1, 2, 3], "orders-1": [7], "bills-0": [1]}
    assert by_partition(whole.slice(0, 0)) == {}


def test_the_record_is_written_with_its_partition() -> None:
    found: list[dict[str, Any]] = with_partition(rows([1]), 4).to_pylist()
    assert set(found[0]) == {"key", "value", "timestamp", "headers", "partition"}
    assert (found[0]["value"], found[0]["partition"]) == (b"v1", 4)
