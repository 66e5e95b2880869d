"""Transactions in segments: committed reading leaves out aborted and open ones, however tasks are cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.pipeline.segments import segment_reading
from ottla.protocol.records import Codec, ControlType
from ottla.protocol.storage.segments import SegmentFile
from peers.log_directory import PartitionWriter
from peers.segment_queries import brief, expected, rows_of


@pytest.fixture
def transactions(tmp_path: Path) -> PartitionWriter:
    """Transactions of two producers, through several segments; one is open at the end."""
    writer = PartitionWriter(tmp_path)
    for number in range(12):
        writer.batch([b"plain"])
        writer.batch([b"a%d" % number] * 3, producer_id=1)
        if number % 3 == 1:
            writer.roll()
        writer.batch([b"b%d" % number] * 2, producer_id=2)
        writer.end_transaction(1, ControlType.ABORT if number % 2 else ControlType.COMMIT)
        if number % 3 == 2:
            writer.end_transaction(2, ControlType.ABORT if number == 5 else ControlType.COMMIT)
    writer.batch([b"open"] * 4, producer_id=1)
    writer.roll()
    writer.batch([b"behind"])
    return writer


@pytest.mark.parametrize("most", ["50", "200", "1m"])
def test_committed_reading_leaves_out_what_was_aborted_or_is_open(
    transactions: PartitionWriter, most: str
) -> None:
    options = {"isolation__level": "read_committed", "maxBytesPerTask": most}
    found = rows_of(transactions.log_dir, **options)

    assert brief(found) == expected(transactions.visible(committed=True))
    assert {row["value"] for row in found}.isdisjoint({b"a1", b"a3", b"b4", b"open"})
    assert {b"a2", b"b6"} <= {row["value"] for row in found}


def test_uncommitted_reading_leaves_out_markers_alone(transactions: PartitionWriter) -> None:
    assert brief(rows_of(transactions.log_dir)) == expected(transactions.visible())


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
def test_a_transaction_may_end_in_the_active_segment(
    transactions: PartitionWriter, kind: ControlType
) -> None:
    transactions.end_transaction(1, kind)

    found = rows_of(transactions.log_dir, isolation__level="read_committed")
    assert brief(found) == expected(transactions.visible(committed=True))
    assert (b"open" in {row["value"] for row in found}) == (kind is ControlType.COMMIT)


def test_an_end_that_is_not_replicated_has_not_come_yet(transactions: PartitionWriter) -> None:
    before = transactions.next_offset
    begun = transactions.open[1]
    transactions.end_transaction(1, ControlType.COMMIT)
    transactions.checkpoint("replication-offset-checkpoint", before)

    found = rows_of(transactions.log_dir, isolation__level="read_committed", includeActive="true")
    assert found[-1]["offset"] < begun
    assert brief(found) == expected(transactions.visible(0, begun, committed=True))


@pytest.mark.parametrize(
    "lost", [[SegmentFile.PRODUCER_SNAPSHOT], [kind for kind in SegmentFile if kind is not SegmentFile.LOG]]
)
def test_logs_that_were_copied_alone_tell_of_their_transactions(
    transactions: PartitionWriter, lost: list[SegmentFile]
) -> None:
    for path in list(transactions.folder.iterdir()):
        if path.suffix in lost:
            path.unlink()

    found = rows_of(transactions.log_dir, isolation__level="read_committed")
    assert brief(found) == expected(transactions.visible(committed=True))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(1, 5), st.sampled_from(list(Codec))),
        st.tuples(st.just("send"), st.integers(1, 3), st.integers(1, 4)),
        st.tuples(st.just("end"), st.integers(1, 3), st.sampled_from(list(ControlType))),
        st.tuples(st.just("roll"), st.none(), st.none()),
    ),
    min_size=3, max_size=60,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    steps=STEPS,
    interval=st.integers(1, 5),
    most=st.integers(1, 3000),
    chunk=st.integers(64, 2000),
    group=st.integers(1, 2000),
    committed=st.booleans(),
    active=st.booleans(),
    edges=st.tuples(st.integers(0, 300), st.integers(0, 300)),
)
def test_whatever_was_written_is_found_however_it_is_cut(
    steps: list[tuple[str, Any, Any]],
    interval: int,
    most: int,
    chunk: int,
    group: int,
    committed: bool,
    active: bool,
    edges: tuple[int, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    writer = PartitionWriter(tmp_path_factory.mktemp("log"), index_interval=interval)
    _write(writer, steps)
    until = writer.next_offset if active else writer.base_offset
    if committed:
        until = min([until, *writer.open.values()])
    start, end = sorted(min(edge, until) for edge in edges)
    options = {
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "includeActive": str(active).lower(),
        "maxBytesPerTask": str(most),
        "startingOffsets": f'{{"orders": {{"0": {start}}}}}',
        "endingOffsets": f'{{"orders": {{"0": {end}}}}}',
    }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_reading, "CHUNK_BYTES", chunk)
        patch.setattr(segment_reading, "BATCH_BYTES", group)
        found = rows_of(writer.log_dir, **options)

    assert brief(found) == expected(writer.visible(start, end, committed=committed))


def _write(writer: PartitionWriter, steps: list[tuple[str, Any, Any]]) -> None:
    doing: dict[str, Callable[[Any, Any], None]] = {
        "batch": lambda count, codec: writer.batch([b"plain"] * count, codec=codec),
        "send": lambda who, count: writer.batch([b"of %d" % who] * count, producer_id=who),
        "end": lambda who, kind: writer.end_transaction(who, kind) if who in writer.open else None,
        # A broker never closes a segment without records.
        "roll": lambda _, __: writer.roll() if writer.next_offset > writer.base_offset else None,
    }
    for what, one, other in steps:
        doing[what](one, other)
