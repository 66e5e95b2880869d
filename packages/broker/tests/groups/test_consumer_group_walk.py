"""Seeded walks over the life of a consumer group; a failing seed becomes a test of its own."""

from __future__ import annotations

import random

import pytest

from ottla.broker.groups.classic.events import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    LeaveResult,
    MemberIdentity,
    Sync,
    SyncResult,
)
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.testing import (
    REBALANCE_MS,
    ConsumerDriver,
    SimulatedConsumer,
    settle,
    state_of,
)
from ottla.broker.groups.kinds import GroupKind
from ottla.protocol.errors import KafkaError
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)

STEPS = 150


class ClassicConsumer(SimulatedConsumer):
    """A member that reads what it is assigned, by the classic protocol with cooperative rebalances."""

    must_join = True

    def join(self) -> None:  # type: ignore[override]
        self.owned = self.assigned = {}
        self.must_join = True
        self.beat()

    def beat(self) -> None:  # type: ignore[override]
        self.give_up()
        driver = self.driver
        if not self.must_join:
            beat = Heartbeat(token=1, member_id=self.member_id, generation=self.epoch)
            error = driver.step(beat).replies[0].result.error
            self.must_join = bool(error)
        if self.must_join:
            self._join()

    def _join(self) -> None:
        topics = self.driver.consumers.topics
        owned = [
            TopicPartitions(topic=topics.name_of(topic) or "gone", partitions=sorted(indexes))
            for topic, indexes in self.owned.items()
        ]
        metadata = ConsumerProtocolSubscription(topics=sorted(self.topics), owned_partitions=owned)
        joined = (
            self.driver.step(
                Join(
                    token=1,
                    member_id=self.member_id,
                    client_id="client",
                    session_timeout_ms=45_000,
                    rebalance_timeout_ms=REBALANCE_MS,
                    protocol_type="consumer",
                    protocols=(("cooperative-sticky", metadata.to_bytes(1)),),
                )
            )
            .replies[0]
            .result
        )
        assert isinstance(joined, JoinResult)
        assert joined.error == 0, joined.error
        self.epoch = joined.generation
        sync = Sync(token=1, member_id=self.member_id, generation=self.epoch)
        synced = self.driver.step(sync).replies[0].result
        assert isinstance(synced, SyncResult)
        assigned = ConsumerProtocolAssignment.from_bytes(synced.assignment)
        self.assigned = {
            topic_id: frozenset(topic.partitions)
            for topic in assigned.assigned_partitions
            if (topic_id := topics.id_of(topic.topic)) is not None
        }
        # It joins again at once, as consumers do, where it has to give partitions up.
        self.must_join = any(
            not indexes <= self.assigned.get(topic, frozenset()) for topic, indexes in self.owned.items()
        )
        if not self.must_join:
            self.give_up()

    def leave(self, epoch: int = -1) -> None:
        leave = Leave(token=1, members=(MemberIdentity(self.member_id),))
        answer = self.driver.step(leave).replies[0].result
        assert isinstance(answer, LeaveResult)


class Walk:
    """One random life of a group, with what must hold checked after every step."""

    def __init__(self, seed: int, *, with_classic: bool) -> None:
        self.chance = random.Random(seed)
        self.with_classic = with_classic
        interval = self.chance.choice(["0", "0", "1000"])
        self.driver = ConsumerDriver(
            {f"t{number}": self.chance.randint(1, 5) for number in range(3)},
            group_consumer_assignment_interval_ms=interval,
        )
        self.members: list[SimulatedConsumer] = []
        self.born = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check()
        self.driver.holds_work = False
        self._come_to_rest()

    def _step(self) -> None:
        chance = self.chance
        self.driver.holds_work = chance.random() < 0.2
        match chance.choice(["beat"] * 12 + ["join"] * 3 + ["leave", "fall", "wait", "topics", "read"]):
            case "beat" if self.members:
                self._beat(chance.choice(self.members))
            case "join" if len(self.members) < 7:
                self._join()
            case "leave" if self.members:
                self._leave(self.members.pop(chance.randrange(len(self.members))))
            case "fall" if self.members:
                self.members.pop(chance.randrange(len(self.members)))  # it never says anything again
            case "wait":
                self._wait()
            case "topics":
                name = chance.choice([*self.driver.partitions, f"t{len(self.driver.partitions)}"])
                count = self.driver.partitions.get(name, 0) + chance.choice([0, 1])
                self.driver.publish({name: max(count, 1)})
            case "read" if self.members:
                chance.choice(self.members).topics = self._names()

    def _names(self) -> frozenset[str]:
        names = sorted(self.driver.partitions)
        return frozenset(self.chance.sample(names, self.chance.randint(1, len(names))))

    def _join(self) -> None:
        chance, self.born = self.chance, self.born + 1
        expression = chance.choice([None, None, "t[0-2]", ".*", "t1|t9"])
        # Classic members only join a group that other members keep on the consumer protocol.
        modern = [member for member in self.members if not isinstance(member, ClassicConsumer)]
        is_classic = self.with_classic and bool(modern) and chance.random() < 0.4
        kind = ClassicConsumer if is_classic else SimulatedConsumer
        member = kind(
            self.driver, f"m{self.born}", *self._names(), expression=None if is_classic else expression
        )
        self.members.append(member)
        self._attempt(member.join, member)

    def _beat(self, member: SimulatedConsumer) -> None:
        member.give_up()
        before = member.epoch, member.owned
        self._attempt(member.beat, member)
        if member.epoch and self.chance.random() < 0.1 and not isinstance(member, ClassicConsumer):
            member.epoch, member.owned = before  # the answer is lost
            member.assigned = member.owned

    def _attempt(self, send: object, member: SimulatedConsumer) -> None:
        try:
            send()  # type: ignore[operator]
        except KafkaError:
            member.owned = member.assigned = {}
            member.epoch = 0
            if isinstance(member, ClassicConsumer):
                self.members.remove(member)
            else:
                member.join()

    def _leave(self, member: SimulatedConsumer) -> None:
        if member.member_id in self.driver.consumers.members:
            member.leave()
        self._downgraded()

    def _wait(self) -> None:
        for _ in range(self.chance.choice([1, 5])):
            self.driver.wait(10_000)
            self._downgraded()
            for member in list(self.members):
                self._beat(member)

    def _downgraded(self) -> None:
        """End the life of a group that only classic members are left of: they go on as another test."""
        if self.driver.group.kind is GroupKind.CLASSIC:
            self.members.clear()
            self.driver.group = ConsumerGroup("g", self.driver.surroundings)
            self.driver.log.clear()

    def _check(self) -> None:
        self._downgraded()
        present = self.driver.consumers.members
        owners: dict[tuple[int, int], str] = {}
        for member in self.members:
            if member.member_id not in present:
                continue
            for partition in member.partitions:
                other = owners.setdefault(partition, member.member_id)
                assert other == member.member_id, f"{partition} is read by {other} and {member.member_id}"
        assert state_of(self.driver.replayed()) == state_of(self.driver.consumers)

    def _come_to_rest(self) -> None:
        driver = self.driver
        for _ in range(30):  # the sessions of the fallen end, and expressions are looked for again
            driver.wait(10_000)
            self._downgraded()
            for member in list(self.members):
                self._attempt(member.beat, member)
        if not self.members:
            return
        settle(*self.members, rounds=40)
        assert driver.state == "Stable"
        read = {name for member in self.members for name in member.topics}
        read |= {name for found in driver.consumers.expressions.values() for name in found.topics}
        wanted = sorted(
            (topic_id.int, index)
            for name in read
            if (topic_id := driver.consumers.topics.id_of(name)) is not None
            for index in range(driver.partitions[name])
        )
        assert sorted(partition for member in self.members for partition in member.partitions) == wanted


@pytest.mark.parametrize("seed", range(25))
def test_a_random_life_keeps_one_owner_for_each_partition(seed: int) -> None:
    Walk(seed, with_classic=False).run()


@pytest.mark.parametrize("seed", range(25))
def test_a_random_life_with_classic_members_keeps_one_owner_for_each_partition(seed: int) -> None:
    Walk(seed, with_classic=True).run()
