from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Any

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.frontier import Frontier

RECORD_OVERHEAD_BYTES: int
"""The bytes that a record counts in budgets beside its key and its value."""

def encode_runs(offset: int, finished: Sequence[tuple[int, int]]) -> bytes:
    """Return the lengths of runs as varints: unfinished and finished in turns, from an offset on.

    OverflowError for offsets of more than 63 bits.
    """

def encode_bitmap(offset: int, finished: Sequence[tuple[int, int]]) -> bytes:
    """Return a bit for each offset from an offset on, the lowest first. ValueError: ranges do not ascend."""

class Phase(Enum):
    """The life of an assignment. DRAINING gives out no work, CLOSED counts no completion."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"

class StartedOffsets:
    """The offsets that were started, from the lowest unfinished one on."""

    unfinished: int
    """The number of offsets that are started and not finished."""
    has_known: bool
    """Whether `_is_known` is to be asked about each offset that starts."""
    def __init__(self, position: int | None) -> None: ...
    @property
    def next_offset(self) -> int | None:
        """The lowest offset that may start next; None before the first, if nothing was committed."""
    @property
    def lowest_unfinished(self) -> int | None:
        """The lowest offset that is not finished; `next_offset` if there is none."""
    @property
    def ahead(self) -> int:
        """The number of offsets that were started from the position on."""
    @property
    def held(self) -> int:
        """The number of offsets that memory is held for."""
    def start(self, offset: int) -> int:
        """Register a record; return its number for `finish`, or -1 if an earlier reader finished it.

        Raises ValueError for an offset below an earlier one.
        """
    def pass_to(self, next_offset: int) -> bool:
        """Raise the next offset; return whether it was lower."""
    def finish(self, number: int) -> bool:
        """Register a finished record; return whether the frontier moved. IndexError: it is not there."""
    def finished_started(self) -> list[tuple[int, int]]:
        """Return the finished offsets after the position that were started, as ascending ranges."""

class WorkItem:
    """One or more records that a handler is called with (implements `seams.Work`)."""

    started_ms: int
    context: Any
    set_aside_for: BaseException | None
    """The failure that the records are to be set aside for; the handler is not called any more."""
    attempt: int
    lanes: list[Hashable]
    """The lanes that it holds: one, or those of a batch."""
    @property
    def assignment(self) -> Assignment:
        """The assignment that it was taken from; there is none while it waits."""
    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
    @property
    def is_active(self) -> bool:
        """Whether it was taken, and neither released nor parked nor dropped."""
    @property
    def is_stale(self) -> bool:
        """Whether its completion must change nothing: the partition was given up since."""
    @property
    def record(self) -> ConsumerRecord:
        """The first record."""
    @property
    def records(self) -> list[ConsumerRecord]:
        """All records."""
    @property
    def numbers(self) -> list[int]:
        """The numbers of the records in the frontier."""
    @property
    def offset(self) -> int:
        """The offset of the first record."""
    @property
    def lane(self) -> Hashable:
        """The value whose records keep their order; None for records without order."""
    @property
    def size(self) -> int:
        """The bytes that the records count in budgets."""

class Assignment:
    """The state of one assigned partition: lanes, frontier and counts."""

    phase: Phase
    predecessors: list[Assignment]
    """Earlier assignments of the partition whose handlers still run; no work is given out meanwhile."""
    active: int
    in_flight: int
    """Work that was taken, and neither finished nor parked nor dropped."""
    buffered: int
    buffered_bytes: int
    parked: int
    parked_bytes: int
    is_paused: bool
    committed: tuple[int, str] | None
    def __init__(self, partition: TopicPartition, frontier: Frontier) -> None: ...
    @property
    def partition(self) -> TopicPartition: ...
    @property
    def frontier(self) -> Frontier: ...
    @property
    def parked_lanes(self) -> set[Hashable]:
        """The lanes that wait for a retry."""
    @property
    def is_stale(self) -> bool:
        """Whether a completion must change nothing: the partition was given up since."""
    @property
    def lane_count(self) -> int:
        """The lanes that have work which is ready, active or parked."""
    def requeue(self, work: WorkItem) -> None:
        """Put work in front whose retry is due."""
    def free(self, work: WorkItem) -> None:
        """Free the lanes of work that is over: the next work of each becomes ready."""
    def waiting_behind(self, work: WorkItem) -> tuple[int, int]:
        """Return the number and the bytes of records that wait behind work in its lanes."""
    def waiting_buffered(self) -> tuple[int, int]:
        """Return the number and the bytes of waiting records that count as buffered."""
    def clear(self) -> None:
        """Forget all work that is not active; lanes stay taken."""

class Totals:
    """The sums over all assignments."""

    buffered: int
    buffered_bytes: int
    parked: int
    parked_bytes: int

class SchedulerCore:
    """The steps of work that run once per record; `Scheduler` adds the others.

    It calls `_lane(record)`, `_unpark(now_ms)` and `_handlers_ended(assignment)` of its subclass.
    """

    totals: Totals
    resume_due: bool
    """Whether `intake` may resume a partition now; set by completions, reset by the caller."""
    _parked: list[tuple[int, int, WorkItem]]
    """A heap of work that waits for its retry."""
    _paused: set[TopicPartition]
    def __init__(self, is_by_key: bool, batch_size: int, batch_of_any: bool) -> None: ...
    def _put_all(self, one: Assignment, records: Sequence[ConsumerRecord]) -> int: ...
    def count_buffered(self, one: Assignment, count: int, size: int) -> None:
        """Add to what an assignment, and all together, have buffered."""
    def count_parked(self, one: Assignment, count: int, size: int) -> None:
        """Add to what an assignment, and all together, have parked."""
    def _give_turn(self, one: Assignment) -> None: ...
    def _deactivate(self, work: WorkItem) -> None: ...
    @property
    def has_ready(self) -> bool:
        """Whether `take` may return work now, parked work aside."""
    def take(self, now_ms: int) -> WorkItem | None:
        """Return the next work, partition after partition; None if nothing can run now."""
    def release(self, work: WorkItem) -> None:
        """The handler is over: the next work of its lanes may run. The work is not finished yet."""
    def finish(self, work: WorkItem) -> bool:
        """The work is done, outputs included; return whether the partition's frontier moved."""
    def drop(self, work: WorkItem) -> None:
        """The work is abandoned: it is not finished, and another reader handles its records.

        Its lanes stay taken: what follows in them must not run before it.
        """
