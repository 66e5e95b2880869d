"""Tests of consumer groups: a driver for the pure group, with members that do what the answers say."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from ottla.broker.config import broker_config_from
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat, HeartbeatAnswer, anyone
from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
from ottla.broker.groups.kinds import (
    GroupLimits,
    GroupSurroundings,
    HostableGroup,
    KindRecord,
    StepOutcome,
    TimePassed,
)
from ottla.broker.groups.testing import FakeTopics
from ottla.broker.runtime.loop_budget import at_once

GROUP = "g"
REBALANCE_MS = 60_000
SESSION_MS = 45_000
Owned = Mapping[UUID, Collection[int]]


def topic_id(number: int) -> UUID:
    """The id of a topic of tests."""
    return UUID(int=number)


class ConsumerDriver:
    """A group with a clock.

    Records are replayed and kept; work is done at once unless `holds_work` is set.
    """

    def __init__(self, topics: Mapping[str, int] | None = None, **settings: str) -> None:
        self.topics = FakeTopics()
        self.partitions: dict[str, int] = {}
        self.publish({"a": 4} if topics is None else topics)
        self.own_settings: dict[str, str] = {}
        named = {"group.consumer.assignment.interval.ms": "0"}
        named |= {key.replace("_", "."): value for key, value in settings.items()}
        config = broker_config_from({"log.dirs": "/nowhere", **named})
        early = EarlyHeartbeats(config.group_rebalance_heartbeat_interval_ms)
        self.surroundings = GroupSurroundings(
            config=config,
            limits=GroupLimits(),
            group_settings=lambda _: self.own_settings,
            metadata=self.topics.metadata,
            random=random.Random(1),
            early=lambda: early,
        )
        self.group: HostableGroup = ConsumerGroup(GROUP, self.surroundings)
        self.now_ms = 0.0
        self.log: list[Any] = []
        self.holds_work = False
        self.work: list[Any] = []

    @property
    def state(self) -> str:
        """The state of the group, as clients see it."""
        name: str = self.group.state.value
        return name

    @property
    def consumers(self) -> ConsumerGroup:
        """The group, which is one of consumers."""
        assert isinstance(self.group, ConsumerGroup)
        return self.group

    def publish(self, topics: Mapping[str, int]) -> None:
        """Publish topics by their partitions; ids are numbered in the order of their names' first time."""
        self.partitions |= topics
        names = {name: topic_id(number) for number, name in enumerate(self.partitions, start=1)}
        self.topics.publish_partitions({name: (names[name], count) for name, count in topics.items()})
        if hasattr(self, "group"):
            self.group.topics_changed(frozenset(topics))

    def delete(self, *names: str) -> None:
        """Delete topics."""
        for name in names:
            self.topics.metadata.forget(name)
        self.group.topics_changed(frozenset(names))

    # ---- steps

    def step(self, event: object) -> StepOutcome:
        """Step the group, replay its records, and do its work."""
        outcome = self.group.step(event, self.now_ms, int(self.now_ms) + 1)
        self.apply(outcome)
        self.work += outcome.work
        while self.work and not self.holds_work:
            work = self.work.pop(0)
            for result in work.events(at_once(work.steps())):
                self.step(result)
        return outcome

    def apply(self, outcome: StepOutcome) -> None:
        """Append the records of a step, and replay them."""
        if outcome.successor is not None:
            self.group = outcome.successor
        self.log += outcome.records
        for record in outcome.records:
            if isinstance(record, KindRecord):
                self.group.replay(record)
        for event in outcome.then:
            self.group.step(event, self.now_ms, int(self.now_ms))

    def wait(self, ms: float) -> None:
        """Pass time, with `TimePassed` at each deadline of the group."""
        end_ms = self.now_ms + ms
        while (wake_ms := self.group.wake_at_ms) is not None and wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, wake_ms)
            self.step(TimePassed())
        self.now_ms = end_ms

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat and return its answer."""
        outcome = self.step(ConsumerHeartbeat(member_id=member_id, epoch=epoch, **fields))
        answer = outcome.replies[0].result
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def replayed(self) -> ConsumerGroup:
        """The group that the log makes."""
        group = ConsumerGroup(GROUP, self.surroundings)
        for record in self.log:
            if isinstance(record, KindRecord):
                group.replay(record)
        return group


class SimulatedConsumer:
    """A member that reads what it is assigned, and gives partitions up before it takes others."""

    def __init__(
        self,
        driver: ConsumerDriver,
        member_id: str,
        *topics: str,
        expression: str | None = None,
        instance_id: str | None = None,
        may_describe: Callable[[str], bool] = anyone,
    ) -> None:
        self.driver, self.member_id = driver, member_id
        self.topics, self.expression = frozenset(topics), expression
        self.instance_id = instance_id
        self.may_describe = may_describe
        self.epoch = 0
        self.owned: dict[UUID, frozenset[int]] = {}
        """The partitions that it reads."""
        self.assigned: dict[UUID, frozenset[int]] = {}
        """The assignment of the last answer: it reads the rest until it has given that up."""

    def join(self) -> HeartbeatAnswer:
        """Join, with nothing."""
        self.owned = self.assigned = {}
        return self._take(self._full(0))

    def beat(self) -> HeartbeatAnswer:
        """Give up what the last answer took, send all that a heartbeat may have, and do as it is answered."""
        self.give_up()
        return self._take(self._full(self.epoch))

    def give_up(self) -> None:
        """Read no longer the partitions that were taken, and begin with those that came."""
        self.owned = self.assigned

    def _full(self, epoch: int) -> HeartbeatAnswer:
        return self.driver.heartbeat(
            self.member_id,
            epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS,
            topics=self.topics,
            expression=self.expression,
            owned=dict(self.owned),
            may_describe=self.may_describe,
        )

    def _take(self, answer: HeartbeatAnswer) -> HeartbeatAnswer:
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self.assigned = {topic: frozenset(indexes) for topic, indexes in answer.assignment.items()}
        if all(indexes <= self.assigned.get(topic, frozenset()) for topic, indexes in self.owned.items()):
            self.give_up()  # nothing: so it takes at once
        return answer

    def leave(self, epoch: int = -1) -> None:
        """Leave the group; a static member for a while with -2."""
        self.driver.heartbeat(self.member_id, epoch, instance_id=self.instance_id)

    @property
    def partitions(self) -> list[tuple[int, int]]:
        """The partitions it reads: the number of the topic, and of the partition."""
        return sorted((topic.int, index) for topic, indexes in self.owned.items() for index in indexes)


def settle(*members: SimulatedConsumer, rounds: int = 12) -> None:
    """Send heartbeats in turns until nothing changes any more."""
    for _ in range(rounds):
        before = [(member.epoch, member.owned, member.assigned) for member in members]
        for member in members:
            member.beat()
        if before == [(member.epoch, member.owned, member.assigned) for member in members]:
            return
    raise AssertionError("the group does not come to rest")


def state_of(group: ConsumerGroup) -> dict[str, Any]:
    """All that records have made of a group."""
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "assignment": (group.assignment_epoch, group.assigned_at_ms),
        "members": group.members,
        "static": group.static_members,
        "targets": group.targets,
        "expressions": group.expressions,
        "topics": group.readers.topics(),
        "counts": (group.expression_readers, group.assignors, group.classic_count, group.classic_protocols),
    }
