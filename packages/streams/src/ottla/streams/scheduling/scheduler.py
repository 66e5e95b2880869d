"""The scheduler: which work runs next, which partitions pause, what may be committed. Pure.

A piece of work goes through these steps; `_` is the step that ends it:

    add -> take -> release -> finish_      the handler succeeded, and what it sent was acknowledged
                -> retry -> take ...       it failed: its lane waits until a time, and counts as parked
                -> drop_                   it was abandoned, because its partition is given up

Rules for edits. A lane belongs to one piece of work from `take` to `release` or `drop`, retries included.
Only `finish` moves the frontier. Nothing that happens to work of an earlier assignment moves a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Literal

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import OrderFailed
from ottla.streams.scheduling._core import SchedulerCore
from ottla.streams.scheduling.assignment import Assignment, Phase, WorkItem
from ottla.streams.scheduling.finished_offsets import decode
from ottla.streams.scheduling.frontier import CommitPlan, Frontier, commit_plan
from ottla.streams.scheduling.intake import IntakeLimits, may_resume, must_pause

Order = Literal["key", "partition", "none"] | Callable[[ConsumerRecord], Hashable]

_PARTITION_LANE = "partition"


class Scheduler(SchedulerCore):
    """Work of all assigned partitions of one member.

    What runs once per record is native: `take`, `release`, `finish`, `drop`, and the loop of `add`.
    """

    def __init__(
        self,
        order: Order = "key",
        *,
        batch_size: int = 1,
        batch_of_any: bool = False,
        limits: IntakeLimits | None = None,
    ) -> None:
        super().__init__(order == "key", batch_size, batch_of_any)
        self.limits = limits or IntakeLimits()
        self._order = order
        self._assigned: dict[TopicPartition, Assignment] = {}
        self._closing: dict[TopicPartition, list[Assignment]] = {}
        self._parked_count = 0

    # --- assignments

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned, those that drain among them."""
        return frozenset(self._assigned)

    @property
    def lane_count(self) -> int:
        """The lanes that have records which wait or are handled."""
        return sum(assignment.lane_count for assignment in self._assigned.values())

    def assign(self, partition: TopicPartition, offset: int | None, metadata: str = "") -> None:
        """Begin with a partition at its committed offset; records that the metadata names are skipped.

        Handlers of an earlier assignment that still run hold back the new one: a key is handled once at a
        time. Without a committed offset the first record that is added is the beginning.
        """
        if partition in self._assigned:
            self.unassign(partition)
        known = [] if offset is None else decode(partition, offset, metadata)
        self._open(partition, Frontier(offset, known)).committed = (
            None if offset is None else (offset, metadata)
        )

    def _open(self, partition: TopicPartition, frontier: Frontier) -> Assignment:
        assignment = Assignment(partition, frontier)
        assignment.predecessors = self._closing.get(partition, [])
        self._assigned[partition] = assignment
        return assignment

    def revoke(self, partition: TopicPartition) -> None:
        """Give out no more work of a partition; forget what waits. What runs may still finish."""
        assignment = self._assigned.get(partition)
        if assignment is None or assignment.phase is not Phase.OPEN:
            return
        assignment.phase = Phase.DRAINING
        self._forget_waiting(assignment)

    def unassign(self, partition: TopicPartition) -> None:
        """Give up a partition: later completions of its work change nothing."""
        assignment = self._assigned.pop(partition, None)
        if assignment is None:
            return
        self._forget_waiting(assignment)
        assignment.phase = Phase.CLOSED
        self._paused.discard(partition)
        self.resume_due = True  # others may have its share
        if assignment.active:
            self._closing.setdefault(partition, []).append(assignment)

    def is_drained(self, partition: TopicPartition) -> bool:
        """Return whether no work of a partition is active or waits for the acknowledgement of its outputs."""
        assignment = self._assigned.get(partition)
        return assignment is None or assignment.in_flight == 0

    def _forget_waiting(self, assignment: Assignment) -> None:
        for _, _, work in self._parked:
            if work.assignment is assignment:
                work.context = work.set_aside_for = None  # it may lead back to the work
        self._parked[:] = [parked for parked in self._parked if parked[2].assignment is not assignment]
        self._parked.sort()
        count, size = assignment.waiting_buffered()
        self.count_buffered(assignment, -count, -size)
        self.count_parked(assignment, -assignment.parked, -assignment.parked_bytes)
        assignment.parked_lanes.clear()
        assignment.clear()

    # --- records

    def add(
        self, partition: TopicPartition, records: Sequence[ConsumerRecord], next_offset: int | None = None
    ) -> int:
        """Queue records in the order of their offsets; return how many of them are to be handled.

        Records of a partition that is not assigned, or drains, are ignored. Offsets between records, and up
        to `next_offset`, do not exist. Offsets lower than before mean that the log was truncated or its topic
        created again: the partition begins again there.
        """
        assignment = self._assigned.get(partition)
        if assignment is None or assignment.phase is not Phase.OPEN:
            return 0
        expected = assignment.frontier.next_offset
        if records and expected is not None and records[0].offset < expected:
            assignment = self._begin_again(assignment, records[0].offset)
        queued = self._put_all(assignment, records)
        if next_offset is not None:
            assignment.frontier.advance(next_offset)
        self._give_turn(assignment)
        return queued

    def _begin_again(self, assignment: Assignment, offset: int) -> Assignment:
        was_paused = assignment.is_paused
        self.unassign(assignment.partition)
        again = self._open(assignment.partition, Frontier(offset))
        if was_paused:  # the consumer's partition is paused still
            again.is_paused = True
            self._paused.add(assignment.partition)
        return again

    def _lane(self, record: ConsumerRecord) -> Hashable:
        order = self._order
        if order == "none":
            return None
        if order == "partition":
            return _PARTITION_LANE
        assert callable(order), "config checks it"
        try:
            lane = order(record)
            hash(lane)
        except Exception as error:
            raise OrderFailed(record.topic_partition, record.offset, error) from error
        return lane

    def idle_partitions(self) -> list[TopicPartition]:
        """Return the partitions whose records are all finished."""
        return [
            partition
            for partition, assignment in self._assigned.items()
            if assignment.phase is Phase.OPEN
            and assignment.frontier.next_offset is not None
            and not assignment.frontier.unfinished
        ]

    def unfinished_positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the lowest unfinished offset of each partition that has one, and how many are unfinished."""
        return {
            partition: (position, assignment.frontier.unfinished)
            for partition, assignment in self._assigned.items()
            if assignment.phase is Phase.OPEN
            and assignment.frontier.unfinished
            and (position := assignment.frontier.position) is not None
        }

    # --- retries

    def retried_from(self, now_ms: float) -> set[tuple[TopicPartition, int]]:
        """Return the first offsets of all work whose retry is not due before a time."""
        return {(work.partition, work.offset) for at_ms, _, work in self._parked if at_ms >= now_ms}

    def next_retry_ms(self) -> int | None:
        """Return when the next parked work becomes ready."""
        return self._parked[0][0] if self._parked else None

    def unpark(self, now_ms: int) -> None:
        """Make parked work ready whose time has come."""
        self._unpark(now_ms)

    def _unpark(self, now_ms: int) -> None:
        while self._parked and self._parked[0][0] <= now_ms:
            work = heappop(self._parked)[2]
            assignment = work.assignment
            self._count_parked(work, -1)
            assignment.parked_lanes.difference_update(work.lanes)
            work.attempt += 1
            assignment.requeue(work)
            self._give_turn(assignment)

    def retry(self, work: WorkItem, at_ms: int) -> bool:
        """The attempt failed: its lanes wait until a time. False: the partition is given up, work dropped."""
        assignment = work.assignment
        if assignment.phase is not Phase.OPEN:
            self.drop(work)
            return False
        self._deactivate(work)
        assignment.in_flight -= 1
        self._park(work)
        self._parked_count += 1
        heappush(self._parked, (at_ms, self._parked_count, work))
        return True

    def forsake(self, work: WorkItem) -> None:
        """Wait no longer for released work, whose outputs failed: it is unfinished, and holds up no drain."""
        work.assignment.in_flight -= 1
        work.context = work.set_aside_for = None

    def _park(self, work: WorkItem) -> None:
        self._count_parked(work, 1)
        work.assignment.parked_lanes.update(lane for lane in work.lanes if lane is not None)

    def _handlers_ended(self, assignment: Assignment) -> None:
        """No handler of an earlier assignment runs any more: the one that waits for it may begin."""
        waiting = self._closing[assignment.partition]
        waiting.remove(assignment)
        if not waiting:
            del self._closing[assignment.partition]
            if (successor := self._assigned.get(assignment.partition)) is not None:
                self._give_turn(successor)

    def _count_parked(self, work: WorkItem, sign: int) -> None:
        """Move work and what waits behind it from the buffered counts to the parked ones, or back."""
        count, size = work.assignment.waiting_behind(work)
        count, size = sign * (count + len(work.records)), sign * (size + work.size)
        self.count_parked(work.assignment, count, size)
        self.count_buffered(work.assignment, -count, -size)

    # --- intake

    def intake(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions to pause and those to resume, and regard that as done."""
        self.resume_due = False
        pause, resume = [], []
        count = len(self._assigned)
        for partition, assignment in self._assigned.items():
            if assignment.phase is not Phase.OPEN:
                continue
            if assignment.is_paused and may_resume(assignment, self.totals, self.limits, count):
                assignment.is_paused = False
                self._paused.discard(partition)
                resume.append(partition)
            elif not assignment.is_paused and must_pause(assignment, self.totals, self.limits, count):
                assignment.is_paused = True
                self._paused.add(partition)
                pause.append(partition)
        return pause, resume

    # --- commits

    def commit_plan(self, partition: TopicPartition) -> CommitPlan | None:
        """Return what may be committed for a partition now; None if that is not known or not assigned."""
        assignment = self._assigned.get(partition)
        if assignment is None:
            return None
        return commit_plan(partition, assignment.frontier, self.limits.commit_metadata_max_bytes, assignment)

    def due_commits(self, partitions: Iterable[TopicPartition] | None = None) -> list[CommitPlan]:
        """Return the plans of partitions, by default all, that differ from the committed offsets."""
        chosen = self._assigned if partitions is None else partitions
        plans = [self.commit_plan(partition) for partition in chosen]
        return [
            plan
            for plan in plans
            if plan is not None and self._assigned[plan.partition].committed != (plan.offset, plan.metadata)
        ]

    def committed(self, plan: CommitPlan) -> None:
        """Register that a plan is durable; one of an earlier assignment changes nothing."""
        assignment = self._assigned.get(plan.partition)
        if assignment is not None and assignment is plan.owner:
            assignment.committed = (plan.offset, plan.metadata)
