"""Random schedules of several members over the pure scheduler, held against a model of the log and the group.

A schedule is a seed. It has arrivals with gaps, completions in any order, outputs acknowledged later,
failures and retries, batches, revokes with and without a drain, lost partitions whose old owner goes on for a
while, refused commits, commits that are durable although they failed, limits of metadata that shrink, damaged
and foreign metadata, crashes and restarts. A violation names its seed: `run(seed)` replays it.

More than 500 lines because the mutants belong to the model that must find them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling import finished_offsets
from ottla.streams.scheduling import frontier as commit_plan_module
from ottla.streams.scheduling import scheduler as scheduler_module
from ottla.streams.scheduling.assignment import Assignment, WorkItem
from ottla.streams.scheduling.frontier import CommitPlan, Frontier
from ottla.streams.scheduling.intake import IntakeLimits
from ottla.streams.scheduling.scheduler import Scheduler
from peers.lane_records import record

STEPS = 160
KEYS = [*"abcdef", None]
LIMITS = IntakeLimits(
    max_buffered_records=12, max_parked_records=6, max_finished_ahead=40, commit_metadata_max_bytes=60
)
MAX_BATCH = 4
FINAL_ROUNDS = 3_000


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Partition:
    """The log of one partition, what its group committed, and what really happened to its records."""

    name: TopicPartition
    log: list[ConsumerRecord] = field(default_factory=list)
    end: int = 0
    committed: tuple[int, str] | None = None
    known: frozenset[int] = frozenset()
    """The offsets that the durable commit says are finished."""
    handled: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    owner: Member | None = None

    def next_batch(self, position: int, most: int) -> tuple[list[ConsumerRecord], int]:
        left = [each for each in self.log if each.offset >= position]
        batch = left[:most]
        return batch, batch[-1].offset + 1 if len(left) > most else self.end


@dataclass
class Member:
    """A consumer with its scheduler: the shell of a processor, without tasks."""

    scheduler: Scheduler
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    known_at_start: dict[TopicPartition, frozenset[int]] = field(default_factory=dict)
    paused: set[TopicPartition] = field(default_factory=set)
    running: list[WorkItem] = field(default_factory=list)
    unsettled: list[WorkItem] = field(default_factory=list)
    draining: set[TopicPartition] = field(default_factory=set)


class Model:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.now_ms = 0
        self.order: Any = chance.choice(["key", "key", "key", "partition", "none", _first_letter])
        self.batch_size = chance.choice([1, 1, 2, 3])
        self.batch_of_any = chance.random() < 0.5
        self.partitions = [
            Partition(TopicPartition("t", each)) for each in range(chance.choice([1, 1, 2, 3]))
        ]
        self.by_name = {each.name: each for each in self.partitions}
        self.members = [self.member() for _ in range(chance.choice([1, 1, 2, 3]))]
        self.faults = True

    def member(self) -> Member:
        one = Scheduler(
            self.order, batch_size=self.batch_size, batch_of_any=self.batch_of_any,
            limits=replace(LIMITS, commit_metadata_max_bytes=self.chance.choice([0, 24, 40, 60, 4_096])),
        )  # fmt: skip
        return Member(one)

    def run(self) -> None:
        """Run steps whose frequencies differ from schedule to schedule, and then to the end."""
        always = (self.arrive, self.take_in, self.take, self.complete, self.commit, self.assign)
        often = (
            self.take,
            self.complete,
            self.settle,
            self.fail,
            self.end_drain,
            self.notice,
            self.pass_time,
        )
        seldom = (self.revoke, self.lose, self.crash)
        weights = [self.chance.choice([4, 8, 16]) for _ in always]
        weights += [self.chance.choice([0, 2, 4, 8]) for _ in often]
        weights += [self.chance.choice([0, 1, 2]) for _ in seldom]
        self.assign()
        for step in self.chance.choices(always + often + seldom, weights, k=self.chance.randrange(40, STEPS)):
            step()
            self.check_bounds()
        self.faults = False
        self.end()

    # --- the group

    def assign(self) -> None:
        free = [each for each in self.partitions if each.owner is None]
        if free:
            self._start(self.chance.choice(free), self.chance.choice(self.members))

    def _start(self, one: Partition, member: Member) -> None:
        if one.name in member.scheduler.partitions:  # it has not noticed yet that it lost the partition
            return
        one.owner = member
        self.damage(one)
        offset, metadata = one.committed or (None, "")
        member.scheduler.assign(one.name, offset, metadata)
        member.positions[one.name] = offset or 0
        member.known_at_start[one.name] = one.known
        member.paused.discard(one.name)
        member.draining.discard(one.name)

    def revoke(self) -> None:
        one = self.chance.choice(self.partitions)
        if one.owner is not None:
            one.owner.scheduler.revoke(one.name)
            one.owner.draining.add(one.name)

    def end_drain(self) -> None:
        """The drain ends, or its time is up: running handlers are cancelled, and a last commit is tried."""
        one = self.chance.choice(self.partitions)
        member = one.owner
        if member is None or one.name not in member.draining:
            return
        for work in [each for each in member.running if each.partition == one.name]:
            if self.faults and self.chance.random() < 0.2:
                continue  # it ignores its cancellation
            member.running.remove(work)
            member.scheduler.drop(work)
        self._commit(member, [one.name])
        member.scheduler.unassign(one.name)
        member.draining.discard(one.name)
        one.owner = None

    def lose(self) -> None:
        """The group gives a partition to somebody else; its owner notices later."""
        one = self.chance.choice(self.partitions)
        one.owner = None

    def notice(self) -> None:
        member = self.chance.choice(self.members)
        for name in member.scheduler.partitions:
            if self.by_name[name].owner is not member:
                member.scheduler.unassign(name)
                member.draining.discard(name)

    def crash(self) -> None:
        index = self.chance.randrange(len(self.members))
        for one in self.partitions:
            if one.owner is self.members[index]:
                one.owner = None
        self.members[index] = self.member()

    def damage(self, one: Partition) -> None:
        """Somebody else commits, or metadata is damaged: only what is below the offset is known then."""
        if one.committed is None or not self.faults or self.chance.random() < 0.6:
            return
        offset, metadata = one.committed
        position = self.chance.randrange(len(metadata) + 1)
        flipped = metadata[:position] + self.chance.choice("ABQgw/") + metadata[position + 1 :]
        other = self.chance.choice(["", "a note", metadata[:-4], flipped, flipped, None, None])
        if other is None:  # metadata beside another offset
            offset, other = max(0, offset - self.chance.randrange(4)), metadata
        if (offset, other) != one.committed:
            one.committed = offset, other
            one.known = frozenset(each.offset for each in one.log if each.offset < offset)

    # --- records and work

    def arrive(self) -> None:
        one = self.chance.choice(self.partitions)
        for _ in range(self.chance.randrange(1, 6)):
            one.end += self.chance.choice([0, 0, 0, 1, 2, 300])
            one.log.append(record(one.end, self.chance.choice(KEYS), one.name))
            one.end += 1

    def take_in(self) -> None:
        member = self.chance.choice(self.members)
        for name in sorted(member.scheduler.partitions - member.paused - member.draining):
            one = self.by_name[name]
            batch, following = one.next_batch(member.positions[name], self.chance.randrange(1, MAX_BATCH + 1))
            if batch:
                member.scheduler.add(name, batch, following)
                member.positions[name] = following
            self._apply_intake(member)

    def _apply_intake(self, member: Member) -> None:
        pause, resume = member.scheduler.intake()
        if set(pause) & member.paused or set(resume) - member.paused:
            raise Violation(f"paused {pause} or resumed {resume} twice")
        member.paused |= set(pause)
        member.paused -= set(resume)

    def take(self) -> None:
        member = self.chance.choice(self.members)
        work = member.scheduler.take(self.now_ms)
        if work is None:
            return
        one = self.by_name[work.partition]
        for each in work.records:
            self._check_start(member, one, each, work)
        member.running.append(work)

    def _check_start(self, member: Member, one: Partition, each: ConsumerRecord, work: WorkItem) -> None:
        if each.offset in member.known_at_start[one.name]:
            raise Violation(f"{one.name} offset {each.offset} runs again, known finished")
        lane = self._lane(each)
        if lane is None:
            return
        for other in member.running:
            if other.partition == one.name and any(self._lane(found) == lane for found in other.records):
                raise Violation(f"two of lane {lane!r} run at once: {other} and {work}")
        mine = {found.offset for found in work.records}
        for earlier in one.log:
            if earlier.offset >= each.offset:
                return
            is_over = earlier.offset in one.handled or earlier.offset in mine
            if self._lane(earlier) == lane and not is_over:
                raise Violation(f"{one.name} offset {each.offset} runs before {earlier.offset}")

    def _lane(self, each: ConsumerRecord) -> Hashable:
        if self.order == "none":
            return None
        if self.order == "partition":
            return "all"
        return each.key if self.order == "key" else _first_letter(each)

    def complete(self) -> None:
        member = self.chance.choice(self.members)
        if not member.running:
            return
        work = member.running.pop(self.chance.randrange(len(member.running)))
        self.by_name[work.partition].handled |= {each.offset for each in work.records}
        member.scheduler.release(work)
        if self.chance.random() < 0.3:
            member.unsettled.append(work)
        else:
            self._finish(member, work)

    def settle(self) -> None:
        member = self.chance.choice(self.members)
        if member.unsettled:
            self._finish(member, member.unsettled.pop(self.chance.randrange(len(member.unsettled))))

    def _finish(self, member: Member, work: WorkItem) -> None:
        self.by_name[work.partition].finished |= {each.offset for each in work.records}
        member.scheduler.finish(work)

    def fail(self) -> None:
        member = self.chance.choice(self.members)
        if member.running:
            work = member.running.pop(self.chance.randrange(len(member.running)))
            member.scheduler.retry(work, self.now_ms + self.chance.randrange(1, 30))

    def pass_time(self) -> None:
        self.now_ms += self.chance.randrange(1, 40)

    # --- commits

    def commit(self) -> None:
        self._commit(self.chance.choice(self.members), None)

    def _commit(self, member: Member, names: list[TopicPartition] | None) -> None:
        for plan in member.scheduler.due_commits(names):
            one = self.by_name[plan.partition]
            self._check_plan(one, plan)
            if one.owner is not member or (self.faults and self.chance.random() < 0.3):
                continue  # refused
            self._check_knowledge(one, plan)
            one.committed = plan.offset, plan.metadata
            one.known = frozenset(each.offset for each in one.log if plan.covers(each.offset))
            if not self.faults or self.chance.random() < 0.9:  # otherwise the answer is lost
                member.scheduler.committed(plan)

    def _check_plan(self, one: Partition, plan: CommitPlan) -> None:
        for each in one.log:
            if plan.covers(each.offset) and each.offset not in one.finished:
                raise Violation(f"{one.name}: {plan} covers offset {each.offset}, which is not finished")

    def _check_knowledge(self, one: Partition, plan: CommitPlan) -> None:
        forgotten = {each for each in one.known if not plan.covers(each)}
        if plan.is_complete and forgotten:
            raise Violation(f"{one.name}: {plan} forgets {sorted(forgotten)}")

    # --- bounds and the end

    def check_bounds(self) -> None:
        for member in self.members:
            totals, limits = member.scheduler.totals, member.scheduler.limits
            over = MAX_BATCH * (len(self.partitions) + 1)
            given_up = sum(len(each.records) for each in member.running if each.assignment.is_stale)
            most = limits.max_buffered_records + limits.max_parked_records + 2 * over + given_up
            if not 0 <= totals.buffered + totals.parked <= most or min(totals.buffered, totals.parked) < 0:
                raise Violation(f"memory: {totals}")

    def end(self) -> None:
        """Faults stop: everything must be handled, finished and committed in a bounded number of rounds."""
        self.members.append(self.member())
        for _ in range(FINAL_ROUNDS):
            self.now_ms += 50
            self.notice()
            self.assign()
            for step in (self.take_in, self.take, self.take, self.complete, self.settle, self.commit):
                step()
            if self.chance.random() < 0.2:
                self.end_drain()
            for member in self.members:
                self._apply_intake(member)
            self.check_bounds()
            if all(each.committed == (each.end, "") for each in self.partitions if each.log):
                return
        left = {str(each.name): (each.committed, each.end, len(each.handled)) for each in self.partitions}
        raise Violation(f"it does not end: committed, end, handled: {left}")


def _first_letter(each: ConsumerRecord) -> Hashable:
    return None if each.key is None else each.key < b"b"


def run(seed: int) -> None:
    """Run one schedule; a failure names its seed."""
    try:
        Model(seed).run()
    except Exception as error:
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("first", range(0, 3_000, 500))
def test_thousands_of_random_schedules_keep_order_lose_nothing_and_repeat_nothing(first: int) -> None:
    for seed in range(first, first + 500):
        run(seed)


# --- mutants: each breaks one rule, and the model must find it


def _commit_what_was_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frontier, "position", property(lambda one: one.next_offset))


def _free_the_lane_during_a_retry(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.retry

    def retry(one: Scheduler, work: WorkItem, at_ms: int) -> bool:
        work.assignment.free(work)
        work.lanes = []
        return original(one, work, at_ms)

    patch.setattr(Scheduler, "retry", retry)


def _accept_foreign_metadata(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finished_offsets, "is_intact", lambda *_: True)


def _leave_the_offset_out_of_the_crc(patch: pytest.MonkeyPatch) -> None:
    original = finished_offsets._crc
    patch.setattr(
        finished_offsets, "_crc", lambda partition, _, kind, body: original(partition, 0, kind, body)
    )


def _count_completions_of_an_earlier_assignment(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.finish

    def finish(one: Scheduler, work: WorkItem) -> bool:
        current = one._assigned.get(work.partition)
        if current is not None and current is not work.assignment:
            for number in work.numbers:
                if current.frontier.ahead > number >= 0:
                    current.frontier.finish(number)
        return original(one, work)

    patch.setattr(Scheduler, "finish", finish)


def _forget_what_an_earlier_reader_finished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Frontier, "_is_known", lambda *_: False)


def _forget_finished_offsets_that_are_not_read_yet(patch: pytest.MonkeyPatch) -> None:
    original = Frontier.finished_ranges
    patch.setattr(
        Frontier,
        "finished_ranges",
        lambda one: [each for each in original(one) if each[0] < (one.next_offset or 0)],
    )


def _run_beside_handlers_of_an_earlier_assignment(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler._open

    def _open(one: Scheduler, name: TopicPartition, frontier: Frontier) -> Assignment:
        opened = original(one, name, frontier)
        opened.predecessors = []
        return opened

    patch.setattr(Scheduler, "_open", _open)


def _count_a_refused_commit(patch: pytest.MonkeyPatch) -> None:
    original = Scheduler.due_commits

    def due_commits(one: Scheduler, names: Any = None) -> list[CommitPlan]:
        plans = original(one, names)
        for plan in plans:
            one.committed(plan)
        return plans

    patch.setattr(Scheduler, "due_commits", due_commits)


def _never_resume(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler_module, "may_resume", lambda *_: False)


def _never_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler_module, "must_pause", lambda *_: False)


def _finish_what_was_abandoned(patch: pytest.MonkeyPatch) -> None:
    def drop(one: Scheduler, work: WorkItem) -> None:
        one.release(work)
        one.finish(work)

    patch.setattr(Scheduler, "drop", drop)


def _finish_before_outputs_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    release, finish = Scheduler.release, Scheduler.finish

    def release_and_finish(one: Scheduler, work: WorkItem) -> None:
        release(one, work)
        finish(one, work)

    patch.setattr(Scheduler, "release", release_and_finish)
    patch.setattr(Scheduler, "finish", lambda *_: False)


def _claim_more_than_the_metadata_names(patch: pytest.MonkeyPatch) -> None:
    original = finished_offsets.encode
    patch.setattr(
        commit_plan_module,
        "encode",
        lambda partition, offset, found, most: (original(partition, offset, found, most)[0], len(found)),
    )


MUTANTS = [
    _commit_what_was_read,
    _free_the_lane_during_a_retry,
    _accept_foreign_metadata,
    _leave_the_offset_out_of_the_crc,
    _count_completions_of_an_earlier_assignment,
    _forget_what_an_earlier_reader_finished,
    _forget_finished_offsets_that_are_not_read_yet,
    _run_beside_handlers_of_an_earlier_assignment,
    _count_a_refused_commit,
    _never_resume,
    _never_pause,
    _finish_what_was_abandoned,
    _finish_before_outputs_are_acknowledged,
    _claim_more_than_the_metadata_names,
]
MUTANT_SEEDS = 3_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.__name__)
def test_the_model_finds_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutant(monkeypatch)

    with pytest.raises(Violation, match="seed"):
        for seed in range(MUTANT_SEEDS):
            run(seed)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_a_hundred_thousand_random_schedules() -> None:
    """`MODEL_SEEDS=first:count` runs others."""
    first, count = map(int, os.environ.get("MODEL_SEEDS", "1000000:100000").split(":"))
    for seed in range(first, first + count):
        run(seed)
