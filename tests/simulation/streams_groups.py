"""Schedules of streams groups: members that come, go, fall silent and lag behind, and what must hold then.

- No task runs in two members at once, nor is it active and a standby in two members of one process.
- The group is what its records make.
- Once nothing happens any more, every task runs, and every member has its target.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from ottla.broker.groups.streams.state import StreamsGroupState
from ottla.broker.groups.streams.tasks import TaskId, each_active, each_task
from ottla.broker.groups.streams.testing import SESSION_MS, SimulatedMember, StreamsDriver, assert_same
from ottla.protocol.errors import FencedMemberEpoch, UnknownMemberId
from simulation.invariant_violated import InvariantViolated

TOPICS = {"words": 5, "app-by-word-repartition": 5, "app-counts-changelog": 5}
ALL_TASKS = frozenset(TaskId(name, number) for name in ("0", "1") for number in range(5))
STEPS = 100


def run_seeds(seeds: Iterable[int]) -> int:
    """Run one schedule for each seed; return how many rebalances there were."""
    return sum(_Schedule(seed).run() for seed in seeds)


class _Schedule:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        chance = self._chance = random.Random(seed)
        self._driver = StreamsDriver(
            TOPICS,
            group_streams_num_standby_replicas=str(chance.randint(0, 2)),
            group_streams_assignment_interval_ms=chance.choice(["0", "500"]),
            group_streams_initial_rebalance_delay_ms=chance.choice(["0", "1000"]),
        )
        self._members: list[SimulatedMember] = []

    def run(self) -> int:
        """Run the schedule; return how often the group epoch rose."""
        for number in range(STEPS):
            self._happen(number)
            self._check_tasks()
            if number % 10 == 0:
                assert_same(self._driver.group, self._driver.replayed())
        self._check_end()
        return self._driver.group.data.facts.epoch

    def _happen(self, number: int) -> None:
        chance, members = self._chance, self._members
        what = chance.random()
        if what < 0.12 or not members:
            process = f"process-{chance.randint(0, 3)}"
            instance = f"static-{number}" if chance.random() < 0.2 else None
            member = SimulatedMember(self._driver, f"m{number}", process_id=process, instance_id=instance)
            members.append(member)
            member.join()
        elif what < 0.18:
            member = members.pop(chance.randrange(len(members)))
            self._driver.leave(member.id, instance_id=member.instance_id)
        elif what < 0.22:
            self._fall_silent(members.pop(chance.randrange(len(members))))
        elif what < 0.26:
            self._driver.wait(chance.randint(1, 900))
        else:
            _beat(chance.choice(members))

    def _fall_silent(self, member: SimulatedMember) -> None:
        """End the session of a member, while the others send heartbeats."""
        _beat(member)
        for _ in range(2):
            self._driver.wait(SESSION_MS // 2)
            for other in self._members:
                _beat(other)
        self._driver.wait(1)

    def _check_tasks(self) -> None:
        known = self._driver.group.data.members
        running: dict[TaskId, str] = {}
        for simulated in self._members:
            if simulated.id in known:  # another one is not heard any more: its commits are fenced
                for task in simulated.running:
                    self._require(task not in running, f"{task} runs in {running.get(task)}, {simulated.id}")
                    running[task] = simulated.id
        active: dict[TaskId, str] = {}
        for member in known.values():
            for held in (member.assigned, member.pending_revocation):
                for task in each_active(held.active):
                    self._require(task not in active, f"{task} is with {active.get(task)} and {member.id}")
                    active[task] = member.id
        for member in known.values():
            for task in each_task(member.assigned.standby):
                owner = active.get(task, member.id)
                is_double = owner != member.id and known[owner].process_id == member.process_id
                self._require(not is_double, f"{task} is twice in {member.process_id}")

    def _check_end(self) -> None:
        for _ in range(10):
            self._driver.wait(1_000)
            for member in self._members * 3:
                _beat(member)
        if self._members:
            state = self._driver.group.state
            self._require(state is StreamsGroupState.STABLE, f"the group is {state.value} in the end")
            running = sorted(task for member in self._members for task in member.running)
            self._require(running == sorted(ALL_TASKS), f"{running} run in the end")

    def _require(self, holds: bool, problem: str) -> None:
        if not holds:
            raise InvariantViolated(f"seed {self._seed}: {problem}")


def _beat(member: SimulatedMember) -> None:
    """Send a heartbeat; a member that was removed joins again, as clients do."""
    try:
        member.beat()
    except (FencedMemberEpoch, UnknownMemberId):
        member.join()
