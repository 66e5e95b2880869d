"""Seeded walks over all that can happen to a streams group; a failing seed becomes a test of its own."""

from __future__ import annotations

import random

import pytest

from ottla.broker.groups.streams.state import StreamsGroupState
from ottla.broker.groups.streams.tasks import TaskId, each_active, each_task
from ottla.broker.groups.streams.testing import SESSION_MS, SimulatedMember, StreamsDriver, assert_same
from ottla.protocol.errors import FencedMemberEpoch, UnknownMemberId

TOPICS = {"words": 5, "app-by-word-repartition": 5, "app-counts-changelog": 5}


@pytest.mark.parametrize("seed", range(16))
def test_no_task_runs_twice_and_the_log_makes_the_same_group(seed: int) -> None:
    chance = random.Random(seed)
    driver = StreamsDriver(
        TOPICS,
        group_streams_num_standby_replicas=str(chance.randint(0, 2)),
        group_streams_assignment_interval_ms=chance.choice(["0", "500"]),
        group_streams_initial_rebalance_delay_ms=chance.choice(["0", "1000"]),
    )
    alive: list[SimulatedMember] = []
    for number in range(120):
        _happen(chance, driver, alive, number)
        _assert_nothing_runs_twice(driver)
        if number % 10 == 0:
            assert_same(driver.group, driver.replayed())
    for _ in range(10):
        driver.wait(1_000)
        for member in alive * 3:
            _beat(member)

    if alive:
        assert driver.group.state is StreamsGroupState.STABLE
        running = [task for member in alive for task in member.active]
        assert sorted(running) == sorted({TaskId(name, number) for name in ("0", "1") for number in range(5)})


def _happen(chance: random.Random, driver: StreamsDriver, alive: list[SimulatedMember], number: int) -> None:
    what = chance.random()
    if what < 0.12 or not alive:
        process = f"process-{chance.randint(0, 3)}"
        instance = f"static-{number}" if chance.random() < 0.2 else None
        alive.append(SimulatedMember(driver, f"m{number}", process_id=process, instance_id=instance))
        alive[-1].join()
    elif what < 0.18:
        member = alive.pop(chance.randrange(len(alive)))
        driver.leave(member.id, instance_id=member.instance_id)
    elif what < 0.22:
        member = alive.pop(chance.randrange(len(alive)))
        driver.wait(SESSION_MS - 1)
        for other in alive:
            _beat(other)
        driver.wait(1)
    elif what < 0.26:
        driver.wait(chance.randint(1, 900))
    else:
        _beat(chance.choice(alive))


def _beat(member: SimulatedMember) -> None:
    """Send a heartbeat; a member that was removed joins again, as clients do."""
    try:
        member.beat()
    except (FencedMemberEpoch, UnknownMemberId):
        member.join()


def _assert_nothing_runs_twice(driver: StreamsDriver) -> None:
    """No task is active in two members, nor in two roles of one process but where it changes its role."""
    active: dict[TaskId, str] = {}
    for member in driver.group.data.members.values():
        for held in (member.assigned, member.pending_revocation):
            for task in each_active(held.active):
                assert task not in active, f"{task} is with {active[task]} and with {member.id}"
                active[task] = member.id
    for member in driver.group.data.members.values():
        for task in each_task(member.assigned.standby):
            owner = active.get(task)
            other = None if owner in (None, member.id) else driver.group.data.members[owner or ""]
            assert other is None or other.process_id != member.process_id, f"{task} is twice in a process"
