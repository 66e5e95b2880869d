"""What of a partition is to be copied, and whether what was begun before is as it should be. Pure.

Without transactions a mirror keeps what it is going to write before it does: which records, and at which
offsets they will be. It is the only writer of its copies, and writes in order. So after it was killed, the
end of a copy says how much of that was written, whatever has happened to the original since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.mirroring.offset_spans import Span, Spans, spans_of
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

COLUMNS = ("key", "value", "timestamp", "headers")
"""What is copied of a record."""


class ForeignRecords(PipelineError):
    """A copy has something that its original does not have."""

    def __init__(self, copy: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{copy} has something at offset {offset} that this mirror did not write there: a copy must have "
            "no other writer. Mirror to a topic of its own (rename), and give the mirror a new name"
        )


class CopyLost(PipelineError):
    """A copy ends before what was written to it."""

    def __init__(self, copy: TopicPartition, end: int, expected: int) -> None:
        super().__init__(
            f"{copy} ends at offset {end}, and had records up to {expected}: it was deleted and made again, "
            "or its brokers lost records. To copy everything anew, give the mirror another name"
        )


class OriginalLost(PipelineError):
    """An original ends before what was copied of it."""

    def __init__(self, original: TopicPartition, end: int, copied: int) -> None:
        super().__init__(
            f"{original} ends at offset {end}, and was copied up to {copied}: it was deleted and made again, "
            "or its brokers lost records. To copy it anew, give the mirror another name"
        )


@dataclass(frozen=True, slots=True)
class RecoveredCopy:
    """How a partition goes on after what was done before, once that is held against the original."""

    copy: TopicPartition
    spans: tuple[Span, ...]
    """Those that were begun when the mirror last stopped; before them all is known to be written."""
    first_target: int
    """Where the copy has to be held against the original from on."""
    end: int
    """Where the copy ends, its last transactions included."""
    changed: tuple[Span, ...] = ()
    gone: tuple[Span, ...] = ()
    """What of the mapping is not so, because it was not written any more."""

    @property
    def next_source(self) -> int:
        """Where the original is to be read from."""
        return self.spans[-1].next_source

    @property
    def first_source(self) -> int:
        """Where the original has to be read from, to hold the copy against it."""
        first = self.spans[0]
        return first.source + min(max(0, self.first_target - first.target), first.count)

    @property
    def next_target(self) -> int:
        """The offset of the copy from which on there is nothing of this mirror."""
        return self.spans[-1].next_target

    def check(self, theirs: pa.RecordBatch, ours: pa.RecordBatch) -> None:
        """Hold what the copy has from `first_target` on against the original from `first_source` on.

        What either of them has lost since then is not missed. Raises ForeignRecords.
        """
        import numpy as np

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
    """Say how a partition goes on whose copy ends at `end`; what was not written is cut off `spans`.

    `sure` is the offset of the copy up to which it was complete before the last round; None where all of it
    is. Raises CopyLost.
    """
    last = spans.last
    assert last is not None, "a partition has a place before it is opened"
    complete = last.next_target if sure is None else min(sure, last.next_target)
    if end < complete:
        raise CopyLost(copy, end, complete)
    changed, gone = spans.cut(end)
    return RecoveredCopy(copy, tuple(spans.since(complete)), complete, end, tuple(changed), tuple(gone))


def _targets(offsets: np.ndarray, spans: tuple[Span, ...]) -> np.ndarray:
    """Return the offsets in the copy for offsets of the original; -1 for those that are in no span."""
    import numpy as np

    found = np.full(len(offsets), -1, np.int64)
    for span in spans:
        inside = (offsets >= span.source) & (offsets < span.next_source)
        found[inside] = offsets[inside] - span.source + span.target
    return found


class PartitionCopy:
    """One partition on its way: knows what comes next, and where that belongs."""

    def __init__(self, copy: TopicPartition, next_source: int, next_target: int) -> None:
        self.copy = copy
        self.next_source = next_source
        self.next_target = next_target

    def left(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are not copied yet: a batch may come again."""
        import pyarrow.compute as pc

        done: int = pc.sum(pc.less(rows.column("offset"), self.next_source)).as_py() or 0
        return rows.slice(done)

    def planned(self, rows: pa.RecordBatch) -> list[Span]:
        """Return the spans that rows will be, when they are written next and nobody else writes."""
        return spans_of(rows.column("offset").to_numpy(), self.next_target)

    def written(
        self, rows: pa.RecordBatch, first_target: int, last_target: int, *, as_planned: bool
    ) -> list[Span]:
        """Return the spans of rows that were written at these offsets. Raises ForeignRecords.

        Where there are transactions their ends have offsets too, so rows may come behind where they were
        planned; not so otherwise.
        """
        if first_target < self.next_target or (as_planned and first_target > self.next_target):
            raise ForeignRecords(self.copy, min(first_target, self.next_target))
        if last_target - first_target != rows.num_rows - 1:
            raise ForeignRecords(self.copy, last_target)
        spans = spans_of(rows.column("offset").to_numpy(), first_target)
        self.next_source, self.next_target = spans[-1].next_source, spans[-1].next_target
        return spans


def with_partition(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return what a producer writes: the records, into the same partition."""
    import pyarrow as pa

    same = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return pa.RecordBatch.from_arrays(
        [*(rows.column(name) for name in COLUMNS), same], names=[*COLUMNS, "partition"]
    )


def by_partition(rows: pa.RecordBatch) -> dict[TopicPartition, pa.RecordBatch]:
    """Return the rows of each partition, in their order."""
    import pyarrow as pa

    found: dict[TopicPartition, list[pa.RecordBatch]] = {}
    for partition, some in _cut(rows) if rows.num_rows else ():
        found.setdefault(partition, []).append(some)
    return {
        partition: some[0] if len(some) == 1 else pa.concat_batches(some) for partition, some in found.items()
    }


def _cut(rows: pa.RecordBatch) -> list[tuple[TopicPartition, pa.RecordBatch]]:
    """Cut rows where the partition changes."""
    import numpy as np

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
