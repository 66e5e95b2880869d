"""Faults of a streams group: of its members, coordinators, log and topics, and of the application itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from ottla.broker.groups.hosting import hosted_groups
from ottla.broker.groups.streams import sticky_assignor, target_assignment
from ottla.broker.groups.streams.tasks import TaskId, Tasks, each_task, grouped
from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import ErrorCode
from simulation import cluster_faults
from simulation.group_cluster import GROUP
from simulation.streams_applications import APPLICATIONS, SOURCES, Application

if TYPE_CHECKING:
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from simulation.group_faults import GroupFault
    from simulation.streams_groups import Schedule
    from simulation.streams_members import StreamsMember

MOST_MEMBERS: Final = 6
LOSES: Final = 0.03
"""How often requests and answers are lost where no fault says more."""
RECREATED_AFTER_S: Final = 3.0
WEIGHTS: Final = {
    "come": 10, "go": 6, "die": 4, "pause": 6, "hang": 1, "fail over": 6, "kill broker": 3, "stall": 2,
    "refuse": 2, "lose answers": 4, "compact": 3, "commit late": 6, "delete group": 1, "configure": 2,
    "grow a source": 1, "delete a source": 1, "delete an internal topic": 2, "mend topics": 6,
    "upgrade": 1, "stranger": 2,
}  # fmt: skip


class StreamsFaults:
    """Brings faults about in a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._cluster = schedule.cluster
        self.applications: dict[Application, None] = {schedule.application: None}
        """The applications that have had a member."""
        self._acts: Mapping[str, Callable[[random.Random], None]] = {
            "come": self._come, "go": self._go, "die": self._die, "pause": self._pause, "hang": self._hang,
            "fail over": partial(cluster_faults.fail_over, self._cluster),
            "kill broker": partial(cluster_faults.kill_broker, self._cluster),
            "stall": partial(cluster_faults.stall, self._cluster),
            "refuse": partial(cluster_faults.refuse, self._cluster),
            "lose answers": self._lose, "compact": partial(cluster_faults.compact, self._cluster),
            "commit late": self._commit_late, "delete group": self._delete_group,
            "configure": self._configure, "grow a source": self._grow,
            "delete a source": self._delete_source, "delete an internal topic": self._delete_internal,
            "mend topics": self._mend, "upgrade": self._upgrade, "stranger": self._join_as_stranger,
        }  # fmt: skip

    def bring_about(self, fault: GroupFault) -> None:
        """Do what a fault stands for, if there is something to do it to."""
        self._acts[fault.kind](fault.chance)

    # ---- members

    def _any_member(self, chance: random.Random) -> StreamsMember | None:
        members = self._schedule.members
        return chance.choice(members) if members else None

    def _come(self, chance: random.Random) -> None:
        if len(self._schedule.members) < MOST_MEMBERS:
            self._schedule.join(chance)

    def _go(self, chance: random.Random) -> None:
        if (member := self._any_member(chance)) is None:
            return
        self._schedule.remove(member)
        if member.instance_id is None or chance.random() < 0.3:
            self._cluster.spawn(member.leave())
            return
        self._cluster.spawn(member.leave(-2))
        if chance.random() < 0.8:
            delay_s = chance.choice([0.5, 3.0, 9.0])
            asyncio.get_running_loop().call_later(delay_s, self._come_back, member.instance_id, chance)

    def _come_back(self, instance_id: str, chance: random.Random) -> None:
        if all(member.instance_id != instance_id for member in self._schedule.members):
            self._schedule.join(chance, instance_id)

    def _die(self, chance: random.Random) -> None:
        if (member := self._any_member(chance)) is not None:
            self._schedule.remove(member)
            member.end()

    def _pause(self, chance: random.Random) -> None:
        if (member := self._any_member(chance)) is not None:
            for_s = chance.choice([1, 5, 7, 15]) * chance.uniform(0.8, 1.2)
            member.paused_until_s = self._schedule.now_s() + for_s

    def _hang(self, chance: random.Random) -> None:
        if (member := self._any_member(chance)) is not None:
            member.is_hung = True

    def _commit_late(self, chance: random.Random) -> None:
        member = self._any_member(chance)
        if member is not None and member.epoch > 1 and member.paused_until_s < self._schedule.now_s():
            self._cluster.spawn(member.commit(chance.randint(1, member.epoch)))

    # ---- the application

    def _upgrade(self, chance: random.Random) -> None:
        self._cluster.spawn(self._replace_all(chance))

    async def _replace_all(self, chance: random.Random) -> None:
        """End every member, delete the group, and begin another application: its topology is another."""
        schedule = self._schedule
        schedule.application = next(one for one in APPLICATIONS if one is not schedule.application)
        self.applications[schedule.application] = None
        for member in list(schedule.members):
            schedule.remove(member)
            await member.leave()
        await asyncio.sleep(chance.choice([0.5, 7]))
        if (coordinator := self._cluster.leader.coordinator) is not None:
            await self._delete(coordinator)
        for _ in range(chance.randint(1, 3)):
            schedule.join(chance)

    def _join_as_stranger(self, chance: random.Random) -> None:
        if len(self._schedule.members) < MOST_MEMBERS:
            application = chance.choice(APPLICATIONS)
            self.applications[application] = None
            self._schedule.join(chance, application=application)

    def _delete_group(self, chance: random.Random) -> None:
        if (coordinator := self._cluster.leader.coordinator) is not None:
            self._cluster.spawn(self._delete(coordinator))

    async def _delete(self, coordinator: GroupCoordinator) -> None:
        if (await coordinator.delete_groups([GROUP]))[GROUP] is ErrorCode.NONE:
            self._schedule.reports.forget()

    def _configure(self, chance: random.Random) -> None:
        settings = self._cluster.group_settings
        settings["streams.session.timeout.ms"] = str(chance.choice([5_000, 6_000]))
        settings["streams.assignment.interval.ms"] = chance.choice(["0", "700"])
        settings["streams.num.standby.replicas"] = str(chance.randint(0, 2))

    # ---- topics

    def _grow(self, chance: random.Random) -> None:
        name, topics = chance.choice(SOURCES), self._cluster.topics
        if name in topics.present:
            self._schedule.create_topic(name, topics.present[name][1] + 1)
        elif self._schedule.now_s() - self._schedule.deleted_s.get(name, -10.0) >= RECREATED_AFTER_S:
            self._schedule.create_topic(name, chance.randint(1, 4))

    def _delete_source(self, chance: random.Random) -> None:
        if (name := chance.choice(SOURCES)) in self._cluster.topics.present:
            self._schedule.delete_topic(name)

    def _delete_internal(self, chance: random.Random) -> None:
        names = [name for name in self._cluster.topics.present if name not in SOURCES]
        if names:
            self._schedule.delete_topic(chance.choice(names))

    def _mend(self, chance: random.Random) -> None:
        last_s = max(self._schedule.deleted_s.values(), default=-10.0)
        if self._schedule.now_s() - last_s >= RECREATED_AFTER_S:
            self._schedule.mend_topics()

    # ---- the network

    def _lose(self, chance: random.Random) -> None:
        usual, self._cluster.loses = self._cluster.loses, 0.3
        asyncio.get_running_loop().call_later(chance.uniform(1, 5), self._lose_less, min(usual, LOSES))

    def _lose_less(self, share: float) -> None:
        self._cluster.loses = min(self._cluster.loses, share)


# ---- ways that groups of a few members do not take by themselves


@contextmanager
def odd_ways(*, steps: bool, warms: bool) -> Iterator[None]:
    """Assign as for hundreds of members, in steps; let some replicas be warm-up tasks, which none is else."""
    modules = (vars(target_assignment), vars(hosted_groups))
    original, most = sticky_assignor.assign, target_assignment.MANY_TASKS
    if steps:
        for names in modules:
            names["LONG"] = 1
        vars(target_assignment)["MANY_TASKS"] = 1
    if warms:
        vars(sticky_assignor)["assign"] = _with_warmups(original)
    try:
        yield
    finally:
        for names in modules:
            names["LONG"] = LONG
        vars(target_assignment)["MANY_TASKS"] = most
        vars(sticky_assignor)["assign"] = original


def _with_warmups(assign: Callable[..., Any]) -> Callable[..., Any]:
    def assigned(members: Any, *given: Any) -> Generator[Any, None, Mapping[str, Tasks]]:
        made: Mapping[str, Tasks] = yield from assign(members, *given)
        return {name: _warming(tasks, len(members)) for name, tasks in made.items()}

    return assigned


def _warming(tasks: Tasks, salt: int) -> Tasks:
    replicas = list(each_task(tasks.standby))
    warm = {task for task in replicas if _is_warm(task, salt)}
    return Tasks(tasks.active, grouped(task for task in replicas if task not in warm), grouped(warm))


def _is_warm(task: TaskId, salt: int) -> bool:
    return crc32(f"{task} {salt}".encode()) % 2 == 0
