"""Schedules of a streams group (KIP-1071): members that come, go, pause and die; coordinators that change.

The product's group coordinators run on three brokers in virtual time (`group_cluster`), with the members of
`streams_members`. Run `python -m simulation.streams_groups --seeds 1:2000`. What must hold:

- A member begins an active task only when no other member that the log has runs it, and none of its process
  has it in any role.
- Epochs of the group, of its assignment and of its members never go back.
- A member that was fenced commits nothing, nor does one in an epoch before it had the task; one that has it
  may always commit. No acknowledged offset is lost.
- The group in memory is what its log makes, and knows the process of each task.
- Every request is answered, with no error that clients do not expect, and nothing fails unexpectedly.
- After the last fault, everyone soon has its target, every task runs once, and none is fenced.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.config import load_broker_config
from ottla.broker.controller.testing import run_in_virtual_time
from ottla.broker.groups.streams.group import StreamsGroup
from ottla.broker.groups.streams.members import MemberState
from ottla.broker.groups.streams.tasks import TaskId, Tasks, each_active, each_task
from ottla.broker.groups.streams.testing import state_of
from simulation.group_cluster import GROUP, SESSION_MS, SETTINGS, GroupCluster, LoggedFailures
from simulation.group_faults import GroupFault, draw, shrink
from simulation.group_members import BEAT_S, REBALANCE_MS
from simulation.group_schedules import FailedSchedule, command, run_each
from simulation.invariant_violated import InvariantViolated
from simulation.logged_streams import LoggedStreamsGroup
from simulation.streams_applications import APPLICATIONS, SOURCES, Application
from simulation.streams_faults import WEIGHTS, StreamsFaults, odd_ways
from simulation.streams_members import StreamsMember
from simulation.streams_reports import StreamsReports

if TYPE_CHECKING:
    from ottla.broker.groups.streams.topology import InternalTopic

FAULTS_S: Final = 50.0
REST_S: Final = (SESSION_MS + REBALANCE_MS) / 1000 + 16
"""The rest before a group must be stable: sessions and rebalances end, topics are mended."""
ANSWERS_AFTER_S: Final = 4.0
"""When everyone has learned of a topic, with answers that are late."""
MOST_BEATS: Final = 20
"""The heartbeats after which everyone has its target."""


class Schedule:
    """One schedule. Raises InvariantViolated."""

    def __init__(self, seed: int, faults: Sequence[GroupFault] | None = None) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.plan = list(faults_of(seed) if faults is None else faults)
        self._is_odd = chance.random() < 0.5, chance.random() < 0.5
        settings = {
            "group.streams.assignment.interval.ms": chance.choice(["0", "0", "1000"]),
            "group.streams.initial.rebalance.delay.ms": chance.choice(["0", "0", "1000"]),
            "group.streams.num.standby.replicas": str(chance.randint(0, 2)),
        }
        self.cluster = GroupCluster(chance, settings)
        config = load_broker_config(SETTINGS | settings).config
        self.logged = LoggedStreamsGroup(
            self.cluster.log, config, self.cluster.brokers[0].topics.metadata, self.cluster.topics
        )
        self.application = chance.choice(APPLICATIONS)
        self.members: list[StreamsMember] = []
        self.reports = StreamsReports(self.cluster, self.logged, self.members)
        self.deleted_s: dict[str, float] = {}
        """When each topic was last deleted."""
        self.topics_changed_s = 0.0
        self._numbers = 0
        self._is_over = False
        self._faults = StreamsFaults(self)

    async def run(self) -> int:
        """Run the schedule; return how many tasks were begun."""
        steps, warms = self._is_odd
        with LoggedFailures(self.cluster.problems), odd_ways(steps=steps, warms=warms):
            async with self.cluster:
                try:
                    await self._run()
                finally:
                    self._is_over = True
                    for member in self.members:
                        member.end()
        self._raise_problems()
        return self.reports.begun

    async def _run(self) -> None:
        topics = self.cluster.topics
        for name in SOURCES:
            topics.create(name, self.chance.randint(1, 4))
        self.cluster.publish(SOURCES, within_s=0)
        await asyncio.sleep(0.1)
        for _ in range(self.chance.randint(1, 3)):
            self.join(self.chance)
        for fault in self.plan:
            while (left_s := fault.at_s - self.now_s()) > 0:
                await asyncio.sleep(min(left_s, 0.8))
                self._check()
            self._faults.bring_about(fault)
            self._check()
        await self._come_to_rest()

    def now_s(self) -> float:
        """The time since the schedule began."""
        return asyncio.get_running_loop().time()

    # ---- members

    def join(
        self, chance: random.Random, instance_id: str | None = None, application: Application | None = None
    ) -> None:
        """Begin a member, unless the schedule is over."""
        if self._is_over:
            return
        self._numbers += 1
        if instance_id is None and chance.random() < 0.3:
            free = {"i1", "i2"} - {member.instance_id for member in self.members}
            instance_id = chance.choice(sorted(free)) if free else None
        member = StreamsMember(
            self,
            f"m{self._numbers}",
            application or self.application,
            # One that returned in another process would bring its tasks there, as with Kafka.
            process_id=f"p{chance.randrange(4)}" if instance_id is None else f"p{instance_id[1:]}",
            instance_id=instance_id,
            has_endpoint=chance.random() < 0.5,
            tags={"zone": chance.choice("ab")} if chance.random() < 0.3 else None,
        )
        self.members.append(member)

    def restart(self, member: StreamsMember) -> None:
        """Begin the program of a member again, after a while, that an error has ended."""
        self.remove(member)
        member.is_over = True
        member.lose_all()
        again = partial(self._begin_again, member.instance_id)
        asyncio.get_running_loop().call_later(self.chance.uniform(0.2, 1), again)

    def _begin_again(self, instance_id: str | None) -> None:
        if instance_id is None or all(member.instance_id != instance_id for member in self.members):
            self.join(self.chance, instance_id)

    def remove(self, member: StreamsMember) -> None:
        """Count a member no longer: it leaves, or has died."""
        if member in self.members:
            self.members.remove(member)

    def may_be_invalid(self, member: StreamsMember) -> bool:
        """Return whether a request of a member may name what the coordinator does not know."""
        if member.epoch == 0:
            return len(self._faults.applications) > 1
        return bool(self.deleted_s)

    # ---- topics

    def create_missing(self, missing: Mapping[str, InternalTopic]) -> None:
        """Create internal topics as a coordinator asks for it: later, and sometimes not at all."""
        for name, topic in missing.items():
            if self.chance.random() < 0.2:
                continue
            earliest_s = self.deleted_s.get(name, -10.0) + 1.5 - self.now_s()
            delay_s = max(earliest_s, self.chance.choice([0.0, 0.3, 3.0]))
            asyncio.get_running_loop().call_later(delay_s, self._create, name, topic.partitions)

    def _create(self, name: str, partitions: int) -> None:
        if name not in self.cluster.topics.present:
            self.create_topic(name, partitions)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        self.topics_changed_s = self.now_s()
        self.cluster.topics.create(name, partitions)
        self.cluster.publish([name])

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.topics_changed_s = self.deleted_s[name] = self.now_s()
        self.cluster.delete_topic(name)

    def mend_topics(self) -> None:
        """Create the sources again, and delete internal topics that do not suit them, as operators do."""
        topics = self.cluster.topics
        for name in SOURCES:
            if name not in topics.present:
                self.create_topic(name, self.chance.randint(1, 4))
        self.cluster.publish(list(topics.present), within_s=0.1)
        for name, count in self.application.internal(topics.partitions).items():
            if name in topics.present and topics.present[name][1] != count:
                self.delete_topic(name)

    # ---- what is checked all the time

    def _raise_problems(self) -> None:
        if self.cluster.problems:
            raise InvariantViolated(self.cluster.problems[0])

    def _check(self) -> None:
        self._raise_problems()
        broker, logged = self.cluster.leader, self.logged.update().data
        partition = broker.led()
        if partition is None or not partition.loaded or partition.leader_epoch != self.cluster.log.epoch:
            return
        hosted = partition.state.groups.get(GROUP)
        if hosted is None or not isinstance(hosted.group, StreamsGroup):
            if logged.members:
                raise InvariantViolated("the log has members that the coordinator does not know")
            return
        live, replayed = state_of(hosted.group.data), state_of(logged)
        for name, value in live.items():
            if value != replayed[name]:
                raise InvariantViolated(f"{name} is {value}, and {replayed[name]} by the log")
        self._check_owners(hosted.group)

    def _check_owners(self, group: StreamsGroup) -> None:
        members = group.data.members
        owners: dict[TaskId, str] = {}
        for member in members.values():
            for held in (member.assigned, member.pending_revocation):
                for task in each_active(held.active):
                    other = owners.setdefault(task, member.id)
                    if other != member.id:
                        raise InvariantViolated(f"{task} is with {other} and {member.id}")
                    if group.data.holders.active(task) != member.process_id:
                        raise InvariantViolated(f"{task} of {member.id} counts as free")
        for member in members.values():
            for task in (*each_task(member.assigned.standby), *each_task(member.assigned.warmup)):
                owner = members.get(owners.get(task, member.id), member)
                if owner is not member and owner.process_id == member.process_id:
                    raise InvariantViolated(
                        f"{task} is given twice to one process: {owner.id} and {member.id}"
                    )

    # ---- the end

    async def _come_to_rest(self) -> None:
        cluster = self.cluster
        cluster.log.stalls_until_s, cluster.log.refuses = 0.0, False
        for member in self.members:
            member.paused_until_s = 0.0
        await asyncio.sleep(BEAT_S)
        self._agree()
        for _ in range(3):
            self.mend_topics()
            revoking = self._revoking()
            await asyncio.sleep(REST_S / 3)  # longer than a rebalance may take
            cluster.loses = 0.0
        if both := revoking & self._revoking():
            raise InvariantViolated(f"{min(both)} gives nothing up, and is not fenced")
        for member in self.members:
            member.is_hung = False
        for _ in range(MOST_BEATS):
            await asyncio.sleep(BEAT_S)
            self._check()
            if self._unrest() is None:
                break
        lost = sum(member.lost for member in self.members)
        await asyncio.sleep(8 * BEAT_S)
        self._check()
        problem = self._unrest()
        if problem is None and sum(member.lost for member in self.members) != lost:
            problem = "members are fenced, though nothing happens"
        if problem is not None:
            raise InvariantViolated(f"in the end {problem}")

    def _revoking(self) -> set[tuple[str, int]]:
        """Return the members that have to give tasks up, each with its epoch."""
        members = self.logged.update().data.members.values()
        return {(one.id, one.epoch) for one in members if one.state is MemberState.UNREVOKED_TASKS}

    def _agree(self) -> None:
        """Go on with the application whose topology the group has; members of another one end."""
        topology = self.logged.update().data.topology
        if topology is not None:
            self.application = next(one for one in APPLICATIONS if one.topology.epoch == topology.epoch)
        for member in [one for one in self.members if one.application is not self.application]:
            self.remove(member)
            self.cluster.spawn(member.leave())
        if not self.members:
            self.join(self.chance)

    def _unrest(self) -> str | None:
        """Return why the group is not at rest; None if it is."""
        hosted, logged = self.cluster.leader.hosted(), self.logged.update().data
        if hosted is None or hosted.group.state.value != "Stable":
            return f"the group is {None if hosted is None else hosted.group.state.value}"
        if (moving := next((member for member in self.members if not member.is_at_rest), None)) is not None:
            return f"{moving} is not at rest"
        if sorted(logged.members) != sorted(member.member_id for member in self.members):
            return f"the group has {sorted(logged.members)}, alive are {[str(m) for m in self.members]}"
        running = sorted(task for member in self.members for task in member.running)
        wanted = sorted(self.application.tasks(self.cluster.topics.partitions))
        if running != wanted:
            return f"{running} run of {wanted}"
        for member in self.members:
            if logged.target.get(member.member_id, Tasks()) != member.held:
                return f"{member} has {member.held}, and shall have {logged.target.get(member.member_id)}"
            if not member.epoch == logged.facts.epoch == logged.assignment_epoch:
                return f"{member} is in epoch {member.epoch} of {logged.facts.epoch}"
        return self._wrong_answers()

    def _wrong_answers(self) -> str | None:
        """Return which member knows wrong tasks of another one with an endpoint; None if none does.

        As in Kafka, partitions of a topic that comes or grows are told with the next change, and these epochs
        begin again with each group: what was told before counts for nothing.
        """
        partitions = self.cluster.topics.partitions
        known_s = max(self.topics_changed_s, self.reports.forgotten_s) + ANSWERS_AFTER_S
        for member in [one for one in self.members if one.answers_s > known_s]:
            told = {
                (answer.user_endpoint.host, answer.user_endpoint.port): {
                    (of.topic, number) for of in answer.active_partitions for number in of.partitions
                }
                for answer in member.answers or ()
            }
            for other in [one for one in self.members if one.endpoint is not None]:
                assert other.endpoint is not None
                name_of = self.cluster.topics.name_of
                reads = {
                    (name_of(topic), number)
                    for task in other.running
                    for topic, number in self.application.inputs(task, partitions)
                }
                if told.get((other.endpoint.host, other.endpoint.port)) != reads:
                    return f"{member} is told {told} of {other}, which reads {reads}"
        return None


def faults_of(seed: int) -> list[GroupFault]:
    """The faults that a seed stands for."""
    return draw(seed, WEIGHTS, FAULTS_S, 0.8)


def run_seeds(seeds: range) -> int:
    """Run the schedules of the seeds; return how often tasks were begun. Raises InvariantViolated."""
    return run_each(seeds, lambda seed: Schedule(seed).run())


def violation_of(seed: int, faults: Sequence[GroupFault]) -> str | None:
    """Return what these faults violate in the cluster of a seed; None if nothing."""
    try:
        run_in_virtual_time(Schedule(seed, faults).run())
    except InvariantViolated as violated:
        return str(violated)
    return None


def shorten(failed: FailedSchedule) -> str:
    """Return fewer faults with which a seed fails alike."""
    faults, violation = shrink(faults_of(failed.seed), failed.violation, partial(violation_of, failed.seed))
    listed = "\n".join(f"  {fault}" for fault in faults)
    return f"{len(faults)} of its faults do: {violation}\n{listed}"


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", "streams groups", run_seeds, sys.argv[1:], shorten=shorten))
