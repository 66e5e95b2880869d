"""Members of groups against the broker's own group, with everything in flight delivered in any order.

At no time do two members that the group believes in own one partition. When the storms are over, every
partition is owned once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.groups.classic.events import (
    GroupState,
    HeartbeatResult,
    JoinResult,
    MemberIdentity,
    Result,
    SyncResult,
)
from ottla.broker.groups.classic.events import Heartbeat as HeartbeatSent
from ottla.broker.groups.classic.events import Join as JoinSent
from ottla.broker.groups.classic.events import Leave as LeaveSent
from ottla.broker.groups.classic.events import Sync as SyncSent
from ottla.broker.groups.testing import GroupDriver
from ottla.consumer.assignors import assignors
from ottla.consumer.group.rebalance import MemberStateMachine
from ottla.consumer.group.rebalance_events import (
    Adopt,
    Adopted,
    Closing,
    Effect,
    Event,
    Fail,
    ForgetCoordinator,
    Heartbeat,
    HeartbeatAnswered,
    Join,
    Joined,
    Leave,
    LookUp,
    MemberMetadata,
    MemberSettings,
    Phase,
    Polled,
    Refused,
    Revoke,
    Revoked,
    Subscribed,
    Sync,
    Synced,
    TimePassed,
    TopicsFound,
    TopicsSeen,
)
from ottla.protocol.topics import TopicPartition

SESSION_MS, REBALANCE_MS, MAX_POLL_MS, BEAT_MS = 10_000, 30_000, 20_000, 3_000
TOPICS = ("a", "b", "c")


class World:
    """One group, its members, and what is under way between them."""

    def __init__(self, strategy: str, chance: random.Random, waits_ms: list[float]) -> None:
        self.chance = chance
        self.waits_ms = waits_ms
        self.strategy = strategy
        self.driver = GroupDriver()
        self.topics = {name: chance.randint(1, 4) for name in TOPICS}
        self.members: dict[int, MemberStateMachine] = {}
        self.failures: list[Exception] = []
        self.held: dict[int, frozenset[TopicPartition]] = {}
        self._under_way: list[tuple[int, Callable[[], None], bool]] = []
        self._waiting: dict[int, Callable[[Result], None]] = {}
        self._names = 0

    # --- what may happen

    def start(self, topics: frozenset[str] | None = None) -> None:
        self._names += 1
        settings = MemberSettings(
            group_id="group",
            assignors=assignors(self.strategy.split("+")),
            instance_id=f"static{self._names}" if self.chance.random() < 0.2 else None,
            heartbeat_interval_ms=BEAT_MS,
            max_poll_interval_ms=MAX_POLL_MS,
        )
        name = self._names
        self.members[name] = MemberStateMachine(settings, self.driver.now_ms)
        self.held[name] = frozenset()
        self.tell(name, Subscribed(topics or self._some_topics()))

    def subscribe(self) -> None:
        self.tell(self._somebody(), Subscribed(self._some_topics()))

    def close(self) -> None:
        self.tell(self._somebody(), Closing())

    def kill(self) -> None:
        name = self._somebody()
        del self.members[name], self.held[name]
        self._under_way = [each for each in self._under_way if each[0] != name]

    def grow(self) -> None:
        self.topics[self.chance.choice(TOPICS)] += 1
        for name in list(self.members):
            self._later(name, partial(self._show_topics, name))

    def lose_connection(self) -> None:
        """Whatever a member waits for is not answered, though it may have been done."""
        name = self._somebody()
        member = self.members[name]
        for request in [each for each in self._under_way if each[0] == name and each[2]]:
            self._under_way.remove(request)
            if self.chance.random() < 0.5:
                request[1]()
        self.tell(name, Refused(member._token, None))
        if member._beat_out:
            self.tell(name, HeartbeatAnswered(member.member_id, member.generation, None))

    def deliver(self) -> None:
        if self._under_way:
            _, act, _ = self._under_way.pop(self.chance.randrange(len(self._under_way)))
            act()

    def pass_some_time(self) -> None:
        self.driver.wait(self.chance.choice(self.waits_ms))
        self._pick_up_answers()
        for name in list(self.members):
            if self.chance.random() < 0.8:
                self.tell(name, Polled())
            self.tell(name, TimePassed())

    def settle(self) -> None:
        for _ in range(400):
            for name in list(self.members):
                self.tell(name, Polled())
                self._show_topics(name)
            while self._under_way:
                self.deliver()
                self.check()
            if self._is_settled():
                return
            self.driver.wait(500)
            self._pick_up_answers()
            for name in list(self.members):
                self.tell(name, TimePassed())
        states = {name: member.phase for name, member in self.members.items()}
        raise AssertionError(f"the group never settled: {self.driver.group.state}, {states}")

    # --- what must hold

    def check(self) -> None:
        owners: dict[TopicPartition, int] = {}
        known = {each.member_id for each in self.driver.group.members}
        for name, member in self.members.items():
            assert self.held[name] >= member.owned - member._revoking or member.phase is Phase.ADOPTING
            if member.member_id not in known:  # expelled, and has not heard of it
                continue
            for partition in self.held[name]:
                assert partition not in owners, f"{partition} is owned by {owners[partition]} and {name}"
                owners[partition] = name

    def check_settled(self) -> None:
        owned = sorted(partition for held in self.held.values() for partition in held)
        wanted = {
            TopicPartition(topic, index)
            for member in self.members.values()
            for topic in member.wanted or ()
            for index in range(self.topics[topic])
        }
        assert owned == sorted(wanted)
        for name, member in self.members.items():
            assert {each.topic for each in self.held[name]} <= (member.wanted or set())
        assert self.failures == []

    def _is_settled(self) -> bool:
        stable = all(member.phase is Phase.STABLE for member in self.members.values())
        seen = all(member.leadership is None or self._counts(member) for member in self.members.values())
        # Whoever died, or is static and went, stays known until its session times out.
        known = {each.member_id for each in self.driver.group.members}
        stable = stable and known == {member.member_id for member in self.members.values()}
        return stable and seen and self.driver.group.state in (GroupState.STABLE, GroupState.EMPTY)

    def _counts(self, member: MemberStateMachine) -> bool:
        return all(len(racks) == self.topics[topic] for topic, racks in member.watched.items())

    # --- how it happens

    def tell(self, name: int, event: Event) -> None:
        if name not in self.members:
            return
        for effect in self.members[name].step(event, self.driver.now_ms):
            if isinstance(effect, Adopt | Revoke | Fail | ForgetCoordinator):
                self._do(name, effect)
            else:
                self._later(name, partial(self._do, name, effect), is_request=True)
        if self.members[name].is_closed:
            assert not self.held[name], "whoever is out owns nothing"
            del self.members[name], self.held[name]

    def _do(self, name: int, effect: Effect) -> None:
        match effect:
            case Revoke():
                # What is held is let go when the application has been told, and not before.
                self._later(name, partial(self._let_go, name, effect))
            case Adopt():
                assert effect.partitions - effect.added == self.held[name]
                self.held[name] = effect.partitions
                self._later(name, lambda: self.tell(name, Adopted()))
            case Fail():
                self.failures.append(effect.error)
            case LookUp():
                racks = {topic: [frozenset[str]()] * self.topics[topic] for topic in effect.topics}
                self._later(name, lambda: self.tell(name, TopicsFound(effect.token, racks)))
            case _:
                self._send(name, effect)
        self._pick_up_answers()

    def _send(self, name: int, effect: Effect) -> None:
        member, driver = self.members.get(name), self.driver
        token = driver.token()
        match effect:
            case Join() if member is not None:
                self._waiting[token] = partial(self._tell_joined, name, effect.token)
                driver.step(
                    JoinSent(
                        token=token,
                        member_id=effect.member_id,
                        instance_id=member.settings.instance_id,
                        session_timeout_ms=SESSION_MS,
                        rebalance_timeout_ms=REBALANCE_MS,
                        protocol_type="consumer",
                        protocols=effect.protocols,
                        require_known_member_id=True,
                        new_member_id=f"m{name}-{token}",
                    )
                )
            case Sync() if member is not None:
                self._waiting[token] = partial(self._tell_synced, name, effect.token)
                driver.step(
                    SyncSent(
                        token=token,
                        member_id=effect.member_id,
                        generation=effect.generation,
                        instance_id=member.settings.instance_id,
                        assignments=effect.assignments,
                    )
                )
            case Heartbeat() if member is not None:
                self._waiting[token] = partial(self._tell_beaten, name, effect)
                driver.step(
                    HeartbeatSent(
                        token=token,
                        member_id=effect.member_id,
                        generation=effect.generation,
                        instance_id=member.settings.instance_id,
                    )
                )
            case Leave():
                driver.step(LeaveSent(token=token, members=(MemberIdentity(effect.member_id),)))

    def _pick_up_answers(self) -> None:
        self.driver.wait(0)
        for token in [token for token in self._waiting if token in self.driver.answers]:
            self._waiting.pop(token)(self.driver.answers[token])

    def _tell_joined(self, name: int, token: int, answer: Result) -> None:
        assert isinstance(answer, JoinResult)
        members = tuple(
            MemberMetadata(each.member_id, each.instance_id, each.metadata) for each in answer.members
        )
        event: Event = Refused(token, answer.error, answer.member_id)
        if answer.error == 0:
            event = Joined(
                token,
                answer.member_id,
                answer.generation,
                answer.protocol_name or "",
                answer.leader_id,
                members,
            )
        self._later(name, lambda: self.tell(name, event))

    def _tell_synced(self, name: int, token: int, answer: Result) -> None:
        assert isinstance(answer, SyncResult)
        event = Refused(token, answer.error) if answer.error else Synced(token, answer.assignment)
        self._later(name, lambda: self.tell(name, event))

    def _tell_beaten(self, name: int, sent: Heartbeat, answer: Result) -> None:
        assert isinstance(answer, HeartbeatResult)
        event = HeartbeatAnswered(sent.member_id, sent.generation, answer.error)
        self._later(name, lambda: self.tell(name, event))

    def _let_go(self, name: int, effect: Revoke) -> None:
        assert effect.partitions <= self.held[name]
        self.held[name] -= effect.partitions
        self.tell(name, Revoked())

    def _show_topics(self, name: int) -> None:
        if name in self.members:
            watched = self.members[name].watched
            self.tell(name, TopicsSeen({each: [frozenset()] * self.topics[each] for each in watched}))

    def _later(self, name: int, act: Callable[[], None], *, is_request: bool = False) -> None:
        self._under_way.append((name, act, is_request))

    def _somebody(self) -> int:
        if not self.members:
            self.start()
        return self.chance.choice(list(self.members))

    def _some_topics(self) -> frozenset[str]:
        if self.chance.random() < 0.6:
            return frozenset(TOPICS)
        return frozenset(self.chance.sample(TOPICS, self.chance.randint(1, 3)))


Act = Callable[[World], None]

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky", "range+cooperative-sticky"]
PEACE: list[Act] = [World.start, World.subscribe, World.close, World.grow, *[World.deliver] * 12]
STORM: list[Act] = [*PEACE, World.start, World.kill, World.lose_connection]


def live(world: World, acts: list[Act], steps: int) -> None:
    """Apply events one after the other, and check the invariants after every one."""
    for _ in range(steps):
        world.chance.choice([*acts, World.pass_some_time])(world)
        world.check()


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(seed=st.integers(0, 2**32), steps=st.integers(10, 120))
@settings(max_examples=60, deadline=None)
def test_members_that_come_and_go_in_peace_never_share_a_partition(
    strategy: str, seed: int, steps: int
) -> None:
    world = World(strategy, random.Random(seed), waits_ms=[1, 100, 2_000])
    live(world, PEACE, steps)

    world.settle()

    world.check_settled()


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(seed=st.integers(0, 2**32), steps=st.integers(10, 120))
@settings(max_examples=60, deadline=None)
def test_members_that_die_and_lose_connections_leave_every_partition_to_somebody(
    strategy: str, seed: int, steps: int
) -> None:
    world = World(strategy, random.Random(seed), waits_ms=[1, 100, 4_000, 15_000])
    live(world, STORM, steps)

    world.settle()

    world.check_settled()


@pytest.mark.parametrize(
    ("strategy", "seed", "steps"),
    [
        pytest.param("sticky", 382, 38, id="a-leader-wants-fewer-topics-as-it-syncs-and-all-as-it-adopts"),
    ],
)
def test_a_course_of_events_that_once_left_partitions_to_nobody(strategy: str, seed: int, steps: int) -> None:
    world = World(strategy, random.Random(seed), waits_ms=[1, 100, 2_000])
    live(world, PEACE, steps)

    world.settle()

    world.check_settled()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_leader_whose_subscription_changes_and_changes_back_as_it_is_assigned_leaves_nothing_to_nobody(
    strategy: str,
) -> None:
    world = World(strategy, random.Random(0), waits_ms=[500])

    world.start(frozenset(TOPICS))
    change_subscription_and_change_it_back(world, 1)
    world.settle()

    world.check_settled()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_follower_whose_subscription_changes_and_changes_back_as_it_is_assigned_leaves_nothing_to_nobody(
    strategy: str,
) -> None:
    world = World(strategy, random.Random(0), waits_ms=[500])
    world.start(frozenset(TOPICS))
    world.settle()

    world.start(frozenset(TOPICS))
    change_subscription_and_change_it_back(world, 2)
    world.settle()

    world.check_settled()


def change_subscription_and_change_it_back(world: World, name: int) -> None:
    """Narrow a member's topics as its assignment arrives, and widen them before it has adopted it."""
    advance(world, name, Phase.SYNCING)
    world.tell(name, Subscribed(frozenset({"a"})))
    advance(world, name, Phase.ADOPTING)
    world.tell(name, Subscribed(frozenset(TOPICS)))


def advance(world: World, name: int, phase: Phase) -> None:
    """Deliver what is under way, and let time pass where nothing is, until a member comes to a phase."""
    for _ in range(1_000):
        if world.members[name].phase is phase:
            return
        world.deliver() if world._under_way else world.pass_some_time()
    raise AssertionError(f"the member never came to {phase}: {world.members[name].phase}")
