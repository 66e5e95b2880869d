"""One assignment of a partition: its lanes, its frontier, and its counts. Pure.

A lane is a queue of records that keep their order, with one active piece of work at a time. A partition that
is assigned again is a new assignment: what happens to work of an earlier one changes nothing for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Any

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.frontier import Frontier


class Phase(Enum):
    """The life of an assignment: DRAINING gives out no work, CLOSED counts no completion."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


class WorkItem:
    """One or more records that a handler is called with (implements `seams.Work`)."""

    __slots__ = (
        "assignment",
        "attempt",
        "context",
        "is_active",
        "lanes",
        "numbers",
        "records",
        "set_aside_for",
        "size",
        "started_ms",
    )

    def __init__(
        self, assignment: Assignment, lane: Hashable, number: int, record: ConsumerRecord, size: int
    ) -> None:
        self.assignment = assignment
        self.lanes = [lane]
        self.numbers = [number]
        self.records = [record]
        self.size = size
        self.attempt = 1
        self.started_ms = 0
        self.context: Any = None
        self.set_aside_for: BaseException | None = None
        """The failure that the records are to be set aside for; the handler is not called any more."""
        self.is_active = False
        """Whether it was taken, and neither released nor parked nor dropped."""

    def __repr__(self) -> str:
        return f"WorkItem({self.partition}, offset {self.offset}, {len(self.records)} records)"

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
        return self.assignment.partition

    @property
    def record(self) -> ConsumerRecord:
        """The first record."""
        return self.records[0]

    @property
    def offset(self) -> int:
        """The offset of the first record."""
        return self.records[0].offset

    @property
    def lane(self) -> Hashable:
        """What the order is kept for; None for records without any order."""
        return self.lanes[0]

    def merge(self, other: WorkItem) -> None:
        """Add the records of another piece of work."""
        self.lanes += other.lanes
        self.numbers += other.numbers
        self.records += other.records
        self.size += other.size


class Assignment:
    """The state of one assigned partition."""

    __slots__ = (
        "active", "buffered", "buffered_bytes", "committed", "frontier", "in_flight", "is_paused",
        "is_queued", "lanes", "parked", "parked_bytes", "parked_lanes", "partition", "phase", "predecessors",
        "ready",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, frontier: Frontier) -> None:
        self.partition = partition
        self.frontier = frontier
        self.phase = Phase.OPEN
        self.lanes: dict[Hashable, deque[WorkItem]] = {}
        """Waiting work by lane; a lane exists while it has work that is ready, active or parked."""
        self.ready: deque[WorkItem] = deque()
        self.parked_lanes: set[Hashable] = set()
        self.predecessors: list[Assignment] = []
        """Earlier assignments of the partition whose handlers still run; no work is given out meanwhile."""
        self.active = 0
        self.in_flight = 0
        """Work that was taken, and neither finished nor parked nor dropped."""
        self.buffered = self.buffered_bytes = 0
        self.parked = self.parked_bytes = 0
        self.is_paused = False
        self.is_queued = False
        self.committed: tuple[int, str] | None = None

    @property
    def is_stale(self) -> bool:
        """Whether a completion must change nothing: the partition was given up since."""
        return self.phase is Phase.CLOSED

    @property
    def can_run(self) -> bool:
        """Whether work may be given out."""
        return self.phase is Phase.OPEN and bool(self.ready) and not self.predecessors

    def put(self, work: WorkItem, lane: Hashable) -> bool:
        """Queue work; return whether it counts as parked, because its lane waits for a retry."""
        if lane is None:
            self.ready.append(work)
            return False
        waiting = self.lanes.get(lane)
        if waiting is None:
            self.lanes[lane] = deque()
            self.ready.append(work)
            return False
        waiting.append(work)
        return bool(self.parked_lanes) and lane in self.parked_lanes

    def free(self, work: WorkItem) -> None:
        """Free the lanes of work that is over: the next work of each becomes ready."""
        lanes = self.lanes
        for lane in work.lanes:
            if lane is None:
                continue
            waiting = lanes[lane]
            if waiting:
                self.ready.append(waiting.popleft())
            else:
                del lanes[lane]

    def batch(self, work: WorkItem, size: int, of_any: bool) -> None:
        """Add what may be handled together with work that was taken, up to `size` records."""
        if work.attempt > 1:  # a retry is not mixed with other records
            return
        if of_any:
            self._take_along(work, self.ready, size)
        elif work.lane is None:
            while self.ready and self.ready[0].lane is None and self.ready[0].attempt == 1:
                if len(work.records) == size:
                    return
                work.merge(self.ready.popleft())
        for lane in tuple(work.lanes):
            if lane is not None and len(work.records) < size:
                self._take_along(work, self.lanes[lane], size, same_lane=True)
        if of_any:
            work.records.sort(key=_offset)
            work.numbers.sort()

    def _take_along(
        self, work: WorkItem, waiting: deque[WorkItem], size: int, *, same_lane: bool = False
    ) -> None:
        while waiting and len(work.records) < size and waiting[0].attempt == 1:
            other = waiting.popleft()
            if same_lane:
                other.lanes = []
            work.merge(other)

    def waiting_of(self, work: WorkItem) -> Iterator[WorkItem]:
        """Yield what waits behind work in its lanes."""
        for lane in work.lanes:
            if lane is not None:
                yield from self.lanes[lane]

    def clear(self) -> None:
        """Forget all work that is not active."""
        self.ready.clear()
        for waiting in self.lanes.values():
            waiting.clear()


def _offset(record: ConsumerRecord) -> int:
    return record.offset
