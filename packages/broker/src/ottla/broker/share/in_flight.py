"""Records in flight of a share partition: batches of offsets, each split into runs of one state. Pure.

A batch is what one acquisition took from the log at once. It stays one unit for later deliveries until parts
of it differ: then it has several runs. Equal neighbours are joined, so that memory follows the number of
differences and not the number of records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

_FIRST: Final = attrgetter("first")


class RecordState(IntEnum):
    """The delivery state of a record, by the number that `__share_group_state` stores."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """On its way to a dead-letter topic (`share.version` 2); it is not delivered again."""
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the delivery is over."""
        return self in FINAL


FINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class Reason(StrEnum):
    """The reason for which a record goes to a dead-letter topic, in the words of Kafka's header."""

    REJECTED = "Offset rejected by client."
    EXHAUSTED = "Offset delivery count exceeded the threshold."


class DeadLetters(NamedTuple):
    """Neighbouring records on their way to a dead-letter topic, for one reason."""

    first_offset: int
    last_offset: int
    delivery_count: int
    reason: Reason


class StateBatch(NamedTuple):
    """Offsets of one delivery state, as they are persisted."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class Acquired(NamedTuple):
    """Offsets that a member has acquired, for the response."""

    first_offset: int
    last_offset: int
    delivery_count: int


@dataclass(slots=True, eq=False)
class Run:
    """Neighbouring offsets of one batch that share their state."""

    first: int
    last: int
    state: RecordState
    delivery_count: int
    member_id: str = ""
    """The owner of acquired records."""
    locked_until_ms: float = inf
    write: int = 0
    """The number of the write that has to be persisted before the state holds; 0: it holds."""
    owner_before: str = ""
    """The owner before that write began."""
    reason: Reason | None = None
    """The reason of a dead letter that is not handed on yet."""

    @property
    def is_available(self) -> bool:
        """Whether a member may acquire the records."""
        return self.state is RecordState.AVAILABLE and not self.write

    @property
    def is_acquired(self) -> bool:
        """Whether a member holds the records, and has not acknowledged them."""
        return self.state is RecordState.ACQUIRED and not self.write

    @property
    def is_finished(self) -> bool:
        """Whether the delivery is over, and persisted."""
        return self.state in FINAL and not self.write

    def joins(self, other: Run) -> bool:
        """Return whether both hold the same facts, so that one run can stand for them."""
        return (
            not self.write
            and not other.write
            and self.state is other.state
            and (self.delivery_count == other.delivery_count or self.state in FINAL)
            and self.member_id == other.member_id
            and self.locked_until_ms == other.locked_until_ms
            and self.reason is other.reason
        )

    def as_state(self) -> StateBatch:
        """Return the run as it is persisted."""
        return StateBatch(self.first, self.last, int(self.state), self.delivery_count)


@dataclass(slots=True, eq=False)
class Batch:
    """Neighbouring offsets that were acquired together, or loaded as one."""

    first: int
    last: int
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run) -> Batch:
        """Return a batch of one run."""
        return cls(run.first, run.last, [run])

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_whole(self) -> bool:
        """Whether all offsets have the same state."""
        return len(self.runs) == 1

    def between(self, first: int, last: int) -> Iterator[Run]:
        """Iterate over the runs that have offsets of a range; they may be changed, not split."""
        for run in islice(self.runs, max(self._index(first), 0), None):
            if run.first > last:
                return
            if run.last >= first:
                yield run

    def _index(self, offset: int) -> int:
        return bisect_right(self.runs, offset, key=_FIRST) - 1

    def isolate(self, run: Run, first: int, last: int) -> Run:
        """Return the part of a run within a range as a run of its own; the rest keeps its state.

        A run that waits for its write is not split: the write completes the run as a whole.
        """
        first, last = max(first, run.first), min(last, run.last)
        if first == run.first and last == run.last:
            return run
        assert not run.write, "a run that is being written is not split"
        parts = [
            _part(run, start, end)
            for start, end in ((run.first, first - 1), (first, last), (last + 1, run.last))
            if start <= end
        ]
        index = self._index(run.first)
        self.runs[index : index + 1] = parts
        return next(part for part in parts if part.first == first)

    def join_runs(self) -> None:
        """Join neighbours that hold the same facts."""
        joined = [self.runs[0]]
        for run in self.runs[1:]:
            if joined[-1].joins(run):
                joined[-1].last = run.last
            else:
                joined.append(run)
        self.runs = joined

    def drop_below(self, offset: int) -> None:
        """Forget the offsets below one that is in the batch."""
        self.runs = [run for run in self.runs if run.last >= offset]
        self.runs[0].first = max(self.runs[0].first, offset)
        self.first = max(self.first, offset)


def _part(run: Run, first: int, last: int) -> Run:
    return Run(
        first, last, run.state, run.delivery_count, run.member_id, run.locked_until_ms, reason=run.reason
    )


def joined(batches: Iterable[StateBatch]) -> list[StateBatch]:
    """Join neighbours of one state and count, in the order of offsets."""
    result: list[StateBatch] = []
    for batch in sorted(batches):
        before = result[-1] if result else None
        if before is not None and before.last_offset + 1 == batch.first_offset and before[2:] == batch[2:]:
            result[-1] = before._replace(last_offset=batch.last_offset)
        else:
            result.append(batch)
    return result
