"""The scheduler: which work runs next, which partitions pause, what may be committed. Pure.

A piece of work goes through these steps; `_` is the step that ends it:

    add -> take -> release -> finish_      the handler succeeded, and what it sent was acknowledged
                -> retry -> take ...       it failed: its lane waits until a time, and counts as parked
                -> drop_                   it was abandoned, because its partition is given up

Rules for edits. A lane belongs to one piece of work from `take` to `release` or `drop`, retries included.
Only `finish` moves the frontier. Nothing that happens to work of an earlier assignment moves a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Literal

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import OrderFailed
from ottla.streams.scheduling.assignment import Assignment, Phase, WorkItem
from ottla.streams.scheduling.commit_plan import CommitPlan, commit_plan
from ottla.streams.scheduling.finished_offsets import decode
from ottla.streams.scheduling.frontier import Frontier
from ottla.streams.scheduling.intake import IntakeLimits, Totals, may_resume, must_pause

Order = Literal["key", "partition", "none"] | Callable[[ConsumerRecord], Hashable]

RECORD_OVERHEAD_BYTES = 100
_PARTITION_LANE = "partition"
_CLOSED = Phase.CLOSED  # a lookup less in what runs once per record


class Scheduler:
    """Work of all assigned partitions of one member."""

    def __init__(
        self,
        order: Order = "key",
        *,
        batch_size: int = 1,
        batch_of_any: bool = False,
        limits: IntakeLimits | None = None,
    ) -> None:
        self.limits = limits or IntakeLimits()
        self.totals = Totals()
        self.resume_due = False
        """Whether `intake` may resume a partition now; set by completions, reset by the caller."""
        self._order = order
        self._batch_size = batch_size
        self._batch_of_any = batch_of_any
        self._assigned: dict[TopicPartition, Assignment] = {}
        self._closing: dict[TopicPartition, list[Assignment]] = {}
        self._rotation: deque[Assignment] = deque()
        self._parked: list[tuple[int, int, WorkItem]] = []
        self._parked_count = 0
        self._paused: set[TopicPartition] = set()

    # --- assignments

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned, those that drain among them."""
        return frozenset(self._assigned)

    @property
    def lane_count(self) -> int:
        """The lanes that have records which wait or are handled."""
        return sum(len(each.lanes) for each in self._assigned.values())

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
        one = Assignment(partition, frontier)
        one.predecessors = self._closing.get(partition, [])
        self._assigned[partition] = one
        return one

    def revoke(self, partition: TopicPartition) -> None:
        """Give out no more work of a partition; forget what waits. What runs may still finish."""
        one = self._assigned.get(partition)
        if one is None or one.phase is not Phase.OPEN:
            return
        one.phase = Phase.DRAINING
        self._forget_waiting(one)

    def unassign(self, partition: TopicPartition) -> None:
        """Give up a partition: later completions of its work change nothing."""
        one = self._assigned.pop(partition, None)
        if one is None:
            return
        self._forget_waiting(one)
        one.phase = Phase.CLOSED
        self._paused.discard(partition)
        self.resume_due = True  # others may have its share
        if one.active:
            self._closing.setdefault(partition, []).append(one)

    def is_drained(self, partition: TopicPartition) -> bool:
        """Return whether no work of a partition is active or waits for the acknowledgement of its outputs."""
        one = self._assigned.get(partition)
        return one is None or one.in_flight == 0

    def _forget_waiting(self, one: Assignment) -> None:
        self._parked = [each for each in self._parked if each[2].assignment is not one]
        self._parked.sort()
        totals = self.totals
        active = one.buffered - sum(len(each.records) for each in self._waiting(one))
        active_bytes = one.buffered_bytes - sum(each.size for each in self._waiting(one))
        totals.buffered -= one.buffered - active
        totals.buffered_bytes -= one.buffered_bytes - active_bytes
        totals.parked -= one.parked
        totals.parked_bytes -= one.parked_bytes
        one.buffered, one.buffered_bytes = active, active_bytes
        one.parked = one.parked_bytes = 0
        one.parked_lanes.clear()
        one.clear()

    def _waiting(self, one: Assignment) -> Iterable[WorkItem]:
        """Yield waiting work that counts as buffered."""
        yield from one.ready
        for lane, waiting in one.lanes.items():
            if lane not in one.parked_lanes:
                yield from waiting

    # --- records

    def add(
        self, partition: TopicPartition, records: Sequence[ConsumerRecord], next_offset: int | None = None
    ) -> int:
        """Queue records in the order of their offsets; return how many of them are to be handled.

        Records of a partition that is not assigned, or drains, are ignored. Offsets between records, and up
        to `next_offset`, do not exist. Offsets lower than before mean that the log was truncated or its topic
        made anew: the partition begins again there.
        """
        one = self._assigned.get(partition)
        if one is None or one.phase is not Phase.OPEN:
            return 0
        expected = one.frontier.next_offset
        if records and expected is not None and records[0].offset < expected:
            one = self._begin_again(one, records[0].offset)
        queued = self._put_all(one, records)
        if next_offset is not None:
            one.frontier.advance(next_offset)
        self._give_turn(one)
        return queued

    def _begin_again(self, one: Assignment, offset: int) -> Assignment:
        was_paused = one.is_paused
        self.unassign(one.partition)
        again = self._open(one.partition, Frontier(offset))
        if was_paused:  # the consumer's partition is paused still
            again.is_paused = True
            self._paused.add(one.partition)
        return again

    def _put_all(self, one: Assignment, records: Sequence[ConsumerRecord]) -> int:
        """Queue records and count them; the loop is the hot part of intake."""
        start, put, is_by_key = one.frontier.start, one.put, self._order == "key"
        count = size = parked = parked_size = 0
        for record in records:
            lane = record.key if is_by_key else self._lane(record)
            number = start(record.offset)
            if number < 0:
                continue
            bytes_ = record.serialized_key_size + record.serialized_value_size + RECORD_OVERHEAD_BYTES
            if put(WorkItem(one, lane, number, record, bytes_), lane):
                parked += 1
                parked_size += bytes_
            else:
                count += 1
                size += bytes_
        totals = self.totals
        one.buffered += count
        one.buffered_bytes += size
        totals.buffered += count
        totals.buffered_bytes += size
        one.parked += parked
        one.parked_bytes += parked_size
        totals.parked += parked
        totals.parked_bytes += parked_size
        return count + parked

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

    # --- work

    def take(self, now_ms: int) -> WorkItem | None:
        """Return the next work, partition after partition; None if nothing can run now."""
        if self._parked and self._parked[0][0] <= now_ms:
            self._unpark(now_ms)
        while self._rotation:
            one = self._rotation.popleft()
            one.is_queued = False
            if not one.can_run:
                continue
            work = one.ready.popleft()
            if self._batch_size > 1:
                one.batch(work, self._batch_size, self._batch_of_any)
            self._give_turn(one)
            one.active += 1
            one.in_flight += 1
            work.is_active = True
            work.started_ms = now_ms
            return work
        return None

    @property
    def has_ready(self) -> bool:
        """Whether `take` may return work now, parked work aside."""
        return bool(self._rotation)

    def next_retry_ms(self) -> int | None:
        """Return when the next parked work becomes ready."""
        return self._parked[0][0] if self._parked else None

    def _give_turn(self, one: Assignment) -> None:
        if one.ready and not one.is_queued and one.can_run:
            one.is_queued = True
            self._rotation.append(one)

    def _unpark(self, now_ms: int) -> None:
        while self._parked and self._parked[0][0] <= now_ms:
            work = heappop(self._parked)[2]
            self._count_parked(work, -1)
            work.assignment.parked_lanes.difference_update(work.lanes)
            work.attempt += 1
            work.assignment.ready.appendleft(work)
            self._give_turn(work.assignment)

    def release(self, work: WorkItem) -> None:
        """The handler is over: the next work of its lanes may run. The work is not finished yet."""
        work.assignment.free(work)
        self._end_attempt(work)

    def _end_attempt(self, work: WorkItem) -> None:
        one = work.assignment
        self._deactivate(work)
        totals, count, size = self.totals, len(work.records), work.size
        one.buffered -= count
        one.buffered_bytes -= size
        totals.buffered -= count
        totals.buffered_bytes -= size
        if one.ready and not one.is_queued:
            self._give_turn(one)
        if self._paused:
            self.resume_due = True

    def finish(self, work: WorkItem) -> bool:
        """The work is done, outputs included; return whether the partition's frontier moved."""
        one = work.assignment
        one.in_flight -= 1
        if one.phase is _CLOSED:
            return False
        numbers = work.numbers
        moved = one.frontier.finish(numbers[0])
        if len(numbers) > 1:
            for number in numbers[1:]:
                moved = one.frontier.finish(number) or moved
        if self._paused:
            self.resume_due = True
        return moved

    def retry(self, work: WorkItem, at_ms: int) -> bool:
        """The attempt failed: its lanes wait until a time. False: the partition is given up, work dropped."""
        one = work.assignment
        if one.phase is not Phase.OPEN:
            self.drop(work)
            return False
        self._deactivate(work)
        one.in_flight -= 1
        self._park(work)
        self._parked_count += 1
        heappush(self._parked, (at_ms, self._parked_count, work))
        return True

    def _park(self, work: WorkItem) -> None:
        self._count_parked(work, 1)
        work.assignment.parked_lanes.update(each for each in work.lanes if each is not None)

    def drop(self, work: WorkItem) -> None:
        """The work is abandoned: it is not finished, and another reader handles its records.

        Its lanes stay taken: what follows in them must not run before it.
        """
        self._end_attempt(work)
        work.assignment.in_flight -= 1

    def _deactivate(self, work: WorkItem) -> None:
        one = work.assignment
        assert work.is_active, "work ends once"
        work.is_active = False
        one.active -= 1
        if not one.active and one.phase is _CLOSED:
            waiting = self._closing[one.partition]
            waiting.remove(one)
            if not waiting:
                del self._closing[one.partition]
                if (successor := self._assigned.get(one.partition)) is not None:
                    self._give_turn(successor)

    def _count_parked(self, work: WorkItem, sign: int) -> None:
        """Move work and what waits behind it from the buffered counts to the parked ones, or back."""
        one, totals = work.assignment, self.totals
        waiting = list(one.waiting_of(work))
        count = sign * (len(work.records) + sum(len(each.records) for each in waiting))
        size = sign * (work.size + sum(each.size for each in waiting))
        one.parked += count
        one.parked_bytes += size
        one.buffered -= count
        one.buffered_bytes -= size
        totals.parked += count
        totals.parked_bytes += size
        totals.buffered -= count
        totals.buffered_bytes -= size

    # --- intake

    def intake(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions to pause and those to resume, and regard that as done."""
        self.resume_due = False
        pause, resume = [], []
        count = len(self._assigned)
        for partition, one in self._assigned.items():
            if one.phase is not Phase.OPEN:
                continue
            if one.is_paused and may_resume(one, self.totals, self.limits, count):
                one.is_paused = False
                self._paused.discard(partition)
                resume.append(partition)
            elif not one.is_paused and must_pause(one, self.totals, self.limits, count):
                one.is_paused = True
                self._paused.add(partition)
                pause.append(partition)
        return pause, resume

    # --- commits

    def commit_plan(self, partition: TopicPartition) -> CommitPlan | None:
        """Return what may be committed for a partition now; None if that is not known or not assigned."""
        one = self._assigned.get(partition)
        if one is None:
            return None
        return commit_plan(partition, one.frontier, self.limits.commit_metadata_max_bytes, one)

    def due_commits(self, partitions: Iterable[TopicPartition] | None = None) -> list[CommitPlan]:
        """Return the plans of partitions, by default all, for which they differ from what is committed."""
        chosen = self._assigned if partitions is None else partitions
        plans = [self.commit_plan(each) for each in chosen]
        return [
            plan
            for plan in plans
            if plan is not None and self._assigned[plan.partition].committed != (plan.offset, plan.metadata)
        ]

    def committed(self, plan: CommitPlan) -> None:
        """Register that a plan is durable; one of an earlier assignment changes nothing."""
        one = self._assigned.get(plan.partition)
        if one is not None and one is plan.owner:
            one.committed = (plan.offset, plan.metadata)
