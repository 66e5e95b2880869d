"""Schedules of a consumer group (KIP-848): members that come, go, pause and die; coordinators that change.

The product's group coordinators run on three brokers in virtual time (`group_cluster`), with the members of
`group_members`. Run `python -m simulation.consumer_groups --seeds 1:2000`. What must hold:

- A member takes a partition only when no other member that the log has reads it, and reads only what it has
  by the log.
- Epochs of the group, of its assignment and of its members never go back; who missed one is fenced.
- A member that was fenced commits nothing, nor does one in an epoch before it had the partition; one that has
  it may always commit. No acknowledged offset is lost.
- The group in memory is what its log makes.
- Every request is answered, with no error that clients do not expect, and nothing fails unexpectedly.
- After the last fault, members that give nothing up are removed; everyone soon has its target, every
  partition has one reader, also one that is new, and none is fenced.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from ottla.broker.config import load_broker_config
from ottla.broker.groups.consumer import target_assignments
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.members import MemberState
from ottla.broker.groups.consumer.testing import state_of
from ottla.broker.groups.hosting import hosted_groups
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import ErrorCode
from simulation import cluster_faults
from simulation.classic_member import ClassicMember
from simulation.group_cluster import BROKERS, GROUP, SESSION_MS, SETTINGS, GroupCluster, LoggedFailures
from simulation.group_members import BEAT_S, REBALANCE_MS, ConsumerMember, Member, Partition
from simulation.group_schedules import command, run_each
from simulation.invariant_violated import InvariantViolated
from simulation.logged_group import LoggedConsumerGroup
from simulation.member_reports import MemberReports

FAULTS_S: Final = 50.0
REST_S: Final = (SESSION_MS + REBALANCE_MS) / 1000 + 16
"""The rest before a group must be stable: sessions and rebalances end, expressions are resolved in 10 s."""
MOST_BEATS: Final = 20
"""The heartbeats after which everyone has its target."""
MOST_MEMBERS: Final = 6
EXPRESSIONS: Final = ("t[0-2]", ".*", "t1|t4", "x")
RECREATED_AFTER_S: Final = 3.0


class Schedule:
    """One schedule. Raises InvariantViolated."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.with_classic = chance.random() < 0.4
        self.is_eager = chance.random() < 0.5
        self.takes_steps = chance.random() < 0.5
        policy = chance.choice(["upgrade", "bidirectional", "bidirectional"])
        settings = {
            "group.consumer.assignment.interval.ms": chance.choice(["0", "0", "1000"]),
            "group.consumer.assignors": chance.choice(["uniform,range", "range,uniform"]),
            "group.consumer.migration.policy": policy
            if self.with_classic
            else chance.choice([policy, "disabled"]),
        }
        self.cluster = GroupCluster(chance, settings)
        self.config = load_broker_config(SETTINGS | settings).config
        self.logged = LoggedConsumerGroup(
            self.cluster.log, self.config, self.cluster.brokers[0].topics.metadata
        )
        self.members: list[Member] = []
        self.reports = MemberReports(self.cluster, self.logged, self.members)
        self._numbers = 0
        self._deleted_s: dict[str, float] = {}

    async def run(self) -> int:
        """Run the schedule; return how many partitions changed their owners."""
        with LoggedFailures(self.cluster.problems), _short_lists(self.takes_steps):
            async with self.cluster:
                try:
                    await self._run()
                finally:
                    for member in self.members:
                        member.end()
        self._raise_problems()
        return self.reports.taken

    async def _run(self) -> None:
        for number in range(3):
            self.cluster.topics.create(f"t{number}", self.chance.randint(1, 4))
        self.cluster.publish(["t0", "t1", "t2"], within_s=0)
        await asyncio.sleep(0.1)
        for _ in range(self.chance.randint(1, 3)):
            self._join()
        end_s = self._now_s() + FAULTS_S
        while self._now_s() < end_s:
            await asyncio.sleep(self.chance.uniform(0, 0.8))
            self._happen()
            self._check()
        await self._come_to_rest()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def next_number(self) -> int:
        """Number members, and the ids that coordinators give them."""
        self._numbers += 1
        return self._numbers

    # ---- members

    def _topics(self) -> frozenset[str]:
        return frozenset(self.chance.sample(["t0", "t1", "t2", "t3", "t4"], self.chance.randint(1, 4)))

    def _join(self, instance_id: str | None = None) -> None:
        chance = self.chance
        if instance_id is None and chance.random() < 0.3:
            free = {"i1", "i2"} - {member.instance_id for member in self.members}
            instance_id = chance.choice(sorted(free)) if free else None
        name = f"m{self.next_number()}"
        if self.with_classic and chance.random() < 0.5:
            self.members.append(
                ClassicMember(self, name, self._topics(), is_eager=self.is_eager, instance_id=instance_id)
            )
            return
        self.members.append(
            ConsumerMember(
                self,
                name,
                self._topics(),
                # None keeps that of the member whose place it takes
                expression=chance.choice(["" if instance_id else None, "", *EXPRESSIONS]),
                rack_id=chance.choice([None, "rack-0", "rack-1"]),
                assignor=chance.choice([None, None, "uniform", "range"]),
                instance_id=instance_id,
            )
        )

    def restart(self, member: Member) -> None:
        """Begin the program of a member again that an error has ended."""
        self._remove(member)
        member.is_over = True
        member.owned.clear()
        self._join(member.instance_id)

    def _remove(self, member: Member) -> None:
        if member in self.members:
            self.members.remove(member)

    def _any_member(self) -> Member | None:
        return self.chance.choice(self.members) if self.members else None

    # ---- what happens

    def _happen(self) -> None:
        chance = self.chance
        kinds: list[tuple[int, Callable[[], None]]] = [
            (10, self._come), (6, self._go), (4, self._die), (6, self._pause), (1, self._hang),
            (6, self._read_others), (6, self._change_topics), (2, self._move_rack),
            (6, self._to_cluster(cluster_faults.fail_over)),
            (3, self._to_cluster(cluster_faults.kill_broker)),
            (2, self._to_cluster(cluster_faults.stall)), (2, self._to_cluster(cluster_faults.refuse)),
            (3, self._to_cluster(cluster_faults.compact)),
            (6, self._commit_late), (1, self._delete_group), (2, self._configure),
        ]  # fmt: skip
        chance.choices([act for _, act in kinds], [weight for weight, _ in kinds])[0]()

    def _to_cluster(self, fault: Callable[[GroupCluster, random.Random], None]) -> Callable[[], None]:
        return partial(fault, self.cluster, self.chance)

    def _come(self) -> None:
        if len(self.members) < MOST_MEMBERS:
            self._join()

    def _go(self) -> None:
        member = self._any_member()
        if member is None:
            return
        self._remove(member)
        if member.instance_id is None or self.chance.random() < 0.3:
            self.cluster.spawn(member.leave())
            return
        self.cluster.spawn(member.leave(-2))
        if self.chance.random() < 0.8:
            delay_s = self.chance.choice([0.5, 3.0, 9.0])
            asyncio.get_running_loop().call_later(delay_s, self._come_back, member.instance_id)

    def _come_back(self, instance_id: str) -> None:
        if all(member.instance_id != instance_id for member in self.members):
            self._join(instance_id)

    def _die(self) -> None:
        if (member := self._any_member()) is not None:
            self._remove(member)
            member.end()

    def _pause(self) -> None:
        if (member := self._any_member()) is not None:
            for_s = self.chance.choice([1, 5, 7, 15]) * self.chance.uniform(0.8, 1.2)
            member.paused_until_s = self._now_s() + for_s

    def _hang(self) -> None:
        if (member := self._any_member()) is not None:
            member.is_hung = True

    def _read_others(self) -> None:
        chance, member = self.chance, self._any_member()
        if member is None:
            return
        member.topics = self._topics()
        if isinstance(member, ConsumerMember) and chance.random() < 0.5:
            member.expression = chance.choice(["", *EXPRESSIONS])
            member.assignor = chance.choice(["uniform", "range"])
            member.rack_id = chance.choice(["rack-0", "rack-1"])
        member.wake()

    def _change_topics(self) -> None:
        chance, topics = self.chance, self.cluster.topics
        name = f"t{chance.randrange(5)}"
        if name not in topics.present:
            if self._now_s() - self._deleted_s.get(name, -10.0) >= RECREATED_AFTER_S:
                topics.create(name, chance.randint(1, 4))
                self.cluster.publish([name])
        elif chance.random() < 0.5:
            topics.create(name, topics.present[name][1] + 1)
            self.cluster.publish([name])
        elif len(topics.present) > 1:
            self._deleted_s[name] = self._now_s()
            self.cluster.delete_topic(name)

    def _move_rack(self) -> None:
        self.cluster.topics.racks[self.chance.randrange(BROKERS)] = self.chance.choice(["rack-1", "rack-2"])
        self.cluster.publish(list(self.cluster.topics.present))

    def _commit_late(self) -> None:
        member = self._any_member()
        if member is not None and member.epoch > 1 and member.paused_until_s < self._now_s():
            self.cluster.spawn(member.commit(self.chance.randint(1, member.epoch)))

    def _delete_group(self) -> None:
        if (coordinator := self.cluster.leader.coordinator) is not None:
            self.cluster.spawn(self._delete(coordinator))

    async def _delete(self, coordinator: GroupCoordinator) -> None:
        if (await coordinator.delete_groups([GROUP]))[GROUP] is ErrorCode.NONE:
            self.reports.forget()

    def _configure(self) -> None:
        self.cluster.group_settings["consumer.session.timeout.ms"] = str(self.chance.choice([5_000, 6_000]))
        self.cluster.group_settings["consumer.assignment.interval.ms"] = self.chance.choice(["0", "700"])

    # ---- what is checked all the time

    def _raise_problems(self) -> None:
        if self.cluster.problems:
            raise InvariantViolated(self.cluster.problems[0])

    def _check(self) -> None:
        self._raise_problems()
        self._check_replay()

    def _check_replay(self) -> None:
        broker, replica = self.cluster.leader, self.logged.update().data
        partition = broker.led()
        if partition is None or not partition.loaded or partition.leader_epoch != self.cluster.log.epoch:
            return
        hosted = partition.state.groups.get(GROUP)
        if hosted is None or not isinstance(hosted.group, ConsumerGroup):
            if replica.members:
                raise InvariantViolated("the log has members that the coordinator does not know")
            return
        live, logged = state_of(hosted.group), state_of(replica)
        for name, value in live.items():
            if value != logged[name]:
                raise InvariantViolated(f"{name} is {value}, and {logged[name]} by the log")
        self._check_owners(hosted.group)
        self.reports.check_read(self._now_s())

    def _check_owners(self, group: ConsumerGroup) -> None:
        owners: dict[Partition, str] = {}
        for member_id, member in group.members.items():
            for held in (member.assigned, member.revoking):
                for topic, indexes in held.items():
                    for index in indexes:
                        other = owners.setdefault((topic, index), member_id)
                        if other != member_id:
                            raise InvariantViolated(f"{topic.int}-{index} is with {other} and {member_id}")
                        if group.is_free(topic, index):
                            raise InvariantViolated(f"{topic.int}-{index} of {member_id} counts as free")

    # ---- the end

    async def _come_to_rest(self) -> None:
        cluster = self.cluster
        cluster.loses = 0.0
        cluster.log.stalls_until_s, cluster.log.refuses = 0.0, False
        cluster.publish(list(cluster.topics.present), within_s=0.1)
        for member in self.members:
            member.paused_until_s = 0.0
        if not self.members:
            self._join()
        await asyncio.sleep(REST_S)
        await self._check_revocations()
        for member in self.members:
            member.is_hung = False
        await self._until_rest()
        lost = sum(member.lost for member in self.members)
        self._grow_a_topic()
        await self._until_rest()
        await asyncio.sleep(8 * BEAT_S)
        self._check()
        problem = self._unrest()
        if problem is None and sum(member.lost for member in self.members) != lost:
            problem = "members are fenced, though nothing happens"
        if problem is not None:
            raise InvariantViolated(f"in the end {problem}")

    async def _until_rest(self) -> None:
        for _ in range(MOST_BEATS):
            await asyncio.sleep(BEAT_S)
            self._check()
            if self._unrest() is None:
                break

    def _grow_a_topic(self) -> None:
        """Add partitions to a topic that is read: by a heartbeat of the consumer protocol they are noticed.

        A consumer group of classic members notices them with the next join only; so does that of Kafka.
        """
        read = sorted({name for member in self.members for name in self._read_by(member)})
        if not read or not (
            self.logged.update().is_classic
            or any(isinstance(member, ConsumerMember) for member in self.members)
        ):
            return
        name = self.chance.choice(read)
        self.cluster.topics.create(name, self.cluster.topics.present[name][1] + 1)
        self.cluster.publish([name], within_s=0.1)

    async def _check_revocations(self) -> None:
        """Raise InvariantViolated where a member may keep for ever what others wait for.

        Members that hang are removed by turns: each that comes back makes another one give something up.
        """
        if revoking := self._revoking():
            await asyncio.sleep(REBALANCE_MS / 1000 + 3 * BEAT_S)
            if kept := sorted(revoking & self._revoking()):
                raise InvariantViolated(f"{kept[0][0]} does not give up its partitions, and is not removed")

    def _revoking(self) -> set[tuple[str, int]]:
        return {
            (member_id, member.epoch)
            for member_id, member in self.logged.update().data.members.items()
            if member.state is MemberState.UNREVOKED_PARTITIONS
        }

    def _unrest(self) -> str | None:
        """Return why the group is not at rest; None if it is."""
        hosted, logged = self.cluster.leader.hosted(), self.logged.update()
        if hosted is None or hosted.group.state.value != "Stable":
            return f"the group is {None if hosted is None else hosted.group.state.value}"
        if (moving := next((member for member in self.members if not member.is_at_rest), None)) is not None:
            return f"{moving} is not at rest"
        if sorted(logged.members) != sorted(member.member_id for member in self.members):
            return f"the group has {sorted(logged.members)}, alive are {[str(m) for m in self.members]}"
        owned = sorted(partition for member in self.members for partition in member.owned)
        wanted = sorted(
            partition
            for name in {name for member in self.members for name in self._read_by(member)}
            for partition in self.cluster.topics.partitions(name)
        )
        if owned != wanted:
            return f"{owned} are read of {wanted}"
        for member in self.members:
            if (problem := self._unrest_of(member, logged)) is not None:
                return problem
        return None

    def _unrest_of(self, member: Member, logged: LoggedConsumerGroup) -> str | None:
        names = {self.cluster.topics.name_of(topic) for topic, _ in member.owned}
        if not names <= self._read_by(member):
            return f"{member} reads {names}"
        if logged.is_classic:
            return None
        target = logged.data.targets.get(member.member_id, {})
        if {(topic, index) for topic, indexes in target.items() for index in indexes} != member.owned.keys():
            return f"{member} has {list(member.owned)}, and shall have {target}"
        if member.epoch != logged.data.epoch:
            return f"{member} is in epoch {member.epoch} of {logged.data.epoch}"
        return None

    def _read_by(self, member: Member) -> set[str]:
        expression = member.expression if isinstance(member, ConsumerMember) else None
        matched = {
            name for name in self.cluster.topics.present if expression and re.fullmatch(expression, name)
        }
        return {*member.topics, *matched} & self.cluster.topics.present.keys()


@contextmanager
def _short_lists(are_long: bool) -> Iterator[None]:
    """Take the ways of groups with hundreds of members with a few of them."""
    modules = (vars(target_assignments), vars(hosted_groups))
    for names in modules if are_long else ():
        names["LONG"] = 1
    try:
        yield
    finally:
        for names in modules:
            names["LONG"] = LONG


def run_seeds(seeds: range) -> int:
    """Run the schedules of the seeds; return how often partitions were taken. Raises InvariantViolated."""
    return run_each(seeds, lambda seed: Schedule(seed).run())


if __name__ == "__main__":
    sys.exit(command(__doc__ or "", "consumer groups", run_seeds, sys.argv[1:]))
