"""The progress of a partition's copy, and its recovery after a kill. Pure.

Without transactions, a mirror stores in advance what it is going to write: the records and their offsets in
the copy. It is the only writer of its copies, and writes in order. So after a kill, the end of a copy tells
how much was written, whatever has happened to the original since.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans, spans_of
from ottla.pipeline.lazy import np, pa, pc
from ottla.protocol.topics import TopicPartition

COLUMNS = ("key", "value", "timestamp", "headers")
"""The columns of a record that are copied."""


class ForeignRecords(PipelineError):
    """A copy has records that its original does not have."""

    def __init__(self, copy: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{copy} has a record at offset {offset} that this mirror did not write there: a copy "
            "must have no other writer. Mirror to a dedicated topic (rename), and give the mirror a "
            "new name"
        )


class CopyLost(PipelineError):
    """A copy ends before the records that were written to it."""

    def __init__(self, copy: TopicPartition, end: int, expected: int) -> None:
        super().__init__(
            f"{copy} ends at offset {end}, but had records up to {expected}: it was deleted and "
            "created again, or its brokers lost records. To copy everything again, give the mirror "
            "another name"
        )


class OriginalLost(PipelineError):
    """An original ends before the records that were copied from it."""

    def __init__(self, original: TopicPartition, end: int, copied: int) -> None:
        super().__init__(
            f"{original} ends at offset {end}, but was copied up to {copied}: it was deleted and "
            "created again, or its brokers lost records. To copy it again, give the mirror another "
            "name"
        )


@dataclass(frozen=True, slots=True)
class RecoveredCopy:
    """The state of a copy after a restart, to be checked against the original."""

    copy: TopicPartition
    spans: tuple[Span, ...]
    """The spans since the last known complete offset; everything before them is written."""
    first_target: int
    """The first offset of the copy that must be compared with the original."""
    end: int
    """The end of the copy, including the end markers of transactions."""
    changed: tuple[Span, ...] = ()
    gone: tuple[Span, ...] = ()
    """Corrections of the mapping: spans that became shorter, and spans that were not written."""

    @property
    def next_source(self) -> int:
        """The offset of the original from which to continue."""
        return self.spans[-1].next_source

    @property
    def first_source(self) -> int:
        """The first offset of the original to read for the comparison."""
        first = self.spans[0]
        return first.source + min(max(0, self.first_target - first.target), first.count)

    @property
    def next_target(self) -> int:
        """The first offset of the copy behind the records of this mirror."""
        return self.spans[-1].next_target

    def check(self, theirs: pa.RecordBatch, ours: pa.RecordBatch) -> None:
        """Compare the copy from `first_target` on with the original from `first_source` on.

        Records that either side has lost since are ignored. Raises ForeignRecords.
        """
        places = theirs.column("offset").to_numpy()
        if not len(places):
            return
        expected = _targets(ours.column("offset").to_numpy(), self.spans)
        at = np.minimum(np.searchsorted(places, expected), len(places) - 1)
        both = places[at] == expected
        one, other = ours.take(np.flatnonzero(both)), theirs.take(at[both])
        for name in COLUMNS:
            if not one.column(name).equals(other.column(name)):
                pairs = zip(one.column(name).to_pylist(), other.column(name).to_pylist(), strict=True)
                differs = next(number for number, (a, b) in enumerate(pairs) if a != b)
                raise ForeignRecords(self.copy, other.column("offset")[differs].as_py())


def recover_copy(copy: TopicPartition, spans: Spans, sure: int | None, end: int) -> RecoveredCopy:
    """Return how to continue with a copy that ends at `end`; removes unwritten offsets from `spans`.

    `sure` is the offset up to which the copy was complete before the last round; None if all of it was.
    Raises CopyLost.
    """
    last = spans.last
    assert last is not None, "a partition has a first span before it is opened"
    complete = last.next_target if sure is None else min(sure, last.next_target)
    if end < complete:
        raise CopyLost(copy, end, complete)
    changed, gone = spans.cut(end)
    return RecoveredCopy(copy, tuple(spans.since(complete)), complete, end, tuple(changed), tuple(gone))


def _targets(offsets: np.ndarray, spans: tuple[Span, ...]) -> np.ndarray:
    """Return the offsets in the copy for offsets of the original; -1 for those outside of all spans."""
    found = np.full(len(offsets), -1, np.int64)
    for span in spans:
        inside = (offsets >= span.source) & (offsets < span.next_source)
        found[inside] = offsets[inside] - span.source + span.target
    return found


class PartitionCopy:
    """The progress of one partition: the next offsets of the original and of the copy."""

    def __init__(self, copy: TopicPartition, next_source: int, next_target: int) -> None:
        self.copy = copy
        self.next_source = next_source
        self.next_target = next_target

    def left(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not copied yet, because a batch may be repeated."""
        done: int = pc.sum(pc.less(rows.column("offset"), self.next_source)).as_py() or 0
        return rows.slice(done)

    def planned(self, rows: pa.RecordBatch) -> list[Span]:
        """Return the spans of rows that are written next, if there is no other writer."""
        return spans_of(rows.column("offset").to_numpy(), self.next_target)

    def written(
        self, rows: pa.RecordBatch, first_target: int, last_target: int, *, as_planned: bool
    ) -> list[Span]:
        """Return the spans of rows that were written at these offsets. Raises ForeignRecords.

        End markers of transactions have offsets too, so with transactions rows may be written behind their
        planned offsets; without them they may not.
        """
        if first_target < self.next_target or (as_planned and first_target > self.next_target):
            raise ForeignRecords(self.copy, min(first_target, self.next_target))
        if last_target - first_target != rows.num_rows - 1:
            raise ForeignRecords(self.copy, last_target)
        spans = spans_of(rows.column("offset").to_numpy(), first_target)
        self.next_source, self.next_target = spans[-1].next_source, spans[-1].next_target
        return spans


def with_partition(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return the records with their partition, for the producer."""
    same = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return pa.RecordBatch.from_arrays(
        [*(rows.column(name) for name in COLUMNS), same], names=[*COLUMNS, "partition"]
    )


def by_partition(rows: pa.RecordBatch) -> dict[TopicPartition, pa.RecordBatch]:
    """Return the rows of each partition, in order."""
    found: dict[TopicPartition, list[pa.RecordBatch]] = {}
    for partition, some in _cut(rows) if rows.num_rows else ():
        found.setdefault(partition, []).append(some)
    return {
        partition: some[0] if len(some) == 1 else pa.concat_batches(some) for partition, some in found.items()
    }


def _cut(rows: pa.RecordBatch) -> list[tuple[TopicPartition, pa.RecordBatch]]:
    """Split rows where the partition changes."""
    topics = rows.column("topic")
    encoded = topics if hasattr(topics, "indices") else topics.dictionary_encode()
    names = encoded.indices.to_numpy(zero_copy_only=False)
    numbers = rows.column("partition").to_numpy(zero_copy_only=False)
    changes = np.flatnonzero((np.diff(names) != 0) | (np.diff(numbers) != 0)) + 1
    starts = [0, *changes.tolist()]
    ends = [*changes.tolist(), rows.num_rows]
    return [
        (TopicPartition(str(topics[start].as_py()), int(numbers[start])), rows.slice(start, end - start))
        for start, end in zip(starts, ends, strict=True)
    ]
