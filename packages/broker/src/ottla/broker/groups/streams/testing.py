"""Tests of streams groups: a driver for the pure group, and members that do what the answers say."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from ottla.broker.config import broker_config_from
from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
from ottla.broker.groups.kinds import GroupLimits, GroupSurroundings, NotWritten, StepOutcome, TimePassed
from ottla.broker.groups.streams.events import Heartbeat, HeartbeatResult, Leave
from ottla.broker.groups.streams.group import StreamsGroup, new_group
from ottla.broker.groups.streams.records import task_ids
from ottla.broker.groups.streams.state import StreamsGroupData
from ottla.broker.groups.streams.tasks import TaskId, each_task, grouped, task_sets
from ottla.broker.groups.testing import BROKER, FakeTopics
from ottla.broker.runtime.loop_budget import at_once
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.messages.streams_group_describe import TaskIds, TopicInfo
from ottla.protocol.messages.streams_groups import (
    CopartitionGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)

GROUP = "app"
REBALANCE_MS = 60_000
SESSION_MS = 45_000


def counting(epoch: int = 0) -> Topology:
    """The topology of a program that counts words by a key it changes: two subtopologies, one with state."""
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=["words"],
                repartition_sink_topics=["app-by-word-repartition"],
            ),
            Subtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name="app-by-word-repartition")],
                state_changelog_topics=[TopicInfo(name="app-counts-changelog")],
            ),
        ],
    )


def stateless(topic: str = "words", epoch: int = 0) -> Topology:
    """The topology of a program that maps each record of a topic."""
    return Topology(epoch=epoch, subtopologies=[Subtopology(subtopology_id="0", source_topics=[topic])])


def joined(epoch: int = 0, *topics: str) -> Topology:
    """The topology of a program that joins topics."""
    return Topology(
        epoch=epoch,
        subtopologies=[
            Subtopology(
                subtopology_id="0",
                source_topics=list(topics),
                copartition_groups=[CopartitionGroup(source_topics=list(range(len(topics))))],
            )
        ],
    )


class StreamsDriver:
    """A group with a clock, whose records are replayed and kept, and whose work is done unless it is held."""

    def __init__(self, topics: Mapping[str, int] | None = None, **settings: str) -> None:
        self.topics = FakeTopics()
        self._names: list[str] = []
        self.own_settings: dict[str, str] = {}
        named = {
            "group.streams.assignment.interval.ms": "0",
            "group.streams.initial.rebalance.delay.ms": "0",
        } | {key.replace("_", "."): value for key, value in settings.items()}
        config = broker_config_from({"log.dirs": "/nowhere", **named})
        early = EarlyHeartbeats(config.group_rebalance_heartbeat_interval_ms)
        self._surroundings = GroupSurroundings(
            config=config,
            limits=GroupLimits(),
            group_settings=lambda _: self.own_settings,
            metadata=self.topics.metadata,
            random=random.Random(1),
            early=lambda: early,
        )
        self.group: StreamsGroup = new_group(GROUP, self._surroundings)
        self.publish({"words": 2} if topics is None else topics)
        self.now_ms = 0.0
        self.log: list[Any] = []
        self.refuses_writes = False
        self.holds_work = False
        self.work: list[Any] = []

    def publish(self, topics: Mapping[str, int]) -> None:
        """Publish topics by their partitions; ids are numbered in the order of their names' first time."""
        self._names += [name for name in topics if name not in self._names]
        states = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=UUID(int=self._names.index(name) + 1),
                partition_states=[
                    UpdateMetadataPartitionState(partition_index=index, leader=BROKER)
                    for index in range(count)
                ],
            )
            for name, count in topics.items()
        ]
        alive = [UpdateMetadataBroker(id=BROKER, endpoints=[])]
        self.topics.metadata.update(
            UpdateMetadataRequest(controller_id=BROKER, live_brokers=alive, topic_states=states)
        )
        self.group.topics_changed(frozenset(topics))

    def delete(self, *names: str) -> None:
        """Delete topics."""
        for name in names:
            self.topics.metadata.forget(name)
        self.group.topics_changed(frozenset(names))

    # ---- steps

    def step(self, event: object) -> StepOutcome:
        """Step the group, replay its records unless they are refused, and do its work."""
        outcome = self.group.step(event, self.now_ms, int(self.now_ms) + 1)
        if outcome.records and self.refuses_writes:
            self.group.step(NotWritten(), self.now_ms, int(self.now_ms) + 1)
            return StepOutcome()
        self.log += outcome.records
        for record in outcome.records:
            self.group.replay(record)
        self.work += outcome.work
        while self.work and not self.holds_work:
            work = self.work.pop(0)
            for result in work.events(at_once(work.steps())):
                self.step(result)
        return outcome

    def wait(self, ms: float) -> None:
        """Pass time, with `TimePassed` at each deadline of the group."""
        end_ms = self.now_ms + ms
        while (wake_ms := self.group.wake_at_ms) is not None and wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, wake_ms)
            self.step(TimePassed())
        self.now_ms = end_ms

    def heartbeat(self, member_id: str, epoch: int, version: int = 1, **fields: Any) -> HeartbeatResult:
        """Send a heartbeat and return its answer; one whose write was refused has none."""
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields
        )
        outcome = self.step(
            Heartbeat(token=None, request=request, client_id="client", client_host="/host", version=version)
        )
        answer = outcome.replies[0].result if outcome.replies else HeartbeatResult(REFUSED)
        assert isinstance(answer, HeartbeatResult)
        return answer

    def leave(self, member_id: str, epoch: int = -1, **fields: Any) -> HeartbeatResult:
        """Leave the group and return the answer."""
        outcome = self.step(Leave(None, member_id, epoch, **fields))
        answer = outcome.replies[0].result if outcome.replies else HeartbeatResult(REFUSED)
        assert isinstance(answer, HeartbeatResult)
        return answer

    def replayed(self) -> StreamsGroup:
        """The group that the log makes."""
        group = new_group(GROUP, self._surroundings)
        for record in self.log:
            group.replay(record)
        return group


REFUSED = StreamsGroupHeartbeatResponse(error_code=-1, status=[])


class SimulatedMember:
    """A member that runs what it is assigned, and reports what it has given up."""

    def __init__(
        self,
        driver: StreamsDriver,
        member_id: str,
        topology: Topology | None = None,
        *,
        process_id: str | None = None,
        instance_id: str | None = None,
        **fields: Any,
    ) -> None:
        self.driver, self.id = driver, member_id
        self.topology = counting() if topology is None else topology
        self.process_id = process_id or f"process-of-{member_id}"
        self.instance_id = instance_id
        self.fields = fields
        self.epoch = 0
        self.active: frozenset[TaskId] = frozenset()
        self.running: frozenset[TaskId] = frozenset()
        """The active tasks, with those that it gives up before its next heartbeat."""
        self.standby: frozenset[TaskId] = frozenset()
        self.status: list[int] = []
        self.last = HeartbeatResult(REFUSED)

    def join(self) -> StreamsGroupHeartbeatResponse:
        """Join with no tasks."""
        self.active = self.running = self.standby = frozenset()
        return self._take(
            self.driver.heartbeat(
                self.id,
                0,
                instance_id=self.instance_id,
                rebalance_timeout_ms=REBALANCE_MS,
                topology=self.topology,
                process_id=self.process_id,
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
                **self.fields,
            )
        )

    def beat(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Report the tasks that it has, and do what the answer says."""
        self.running = self.active
        return self._take(
            self.driver.heartbeat(
                self.id,
                self.epoch,
                instance_id=self.instance_id,
                active_tasks=_named(self.active),
                standby_tasks=_named(self.standby),
                warmup_tasks=[],
                **fields,
            )
        )

    def _take(self, answer: HeartbeatResult) -> StreamsGroupHeartbeatResponse:
        response = answer.response
        if response is REFUSED:
            return response
        self.last = answer
        self.epoch = response.member_epoch
        self.status = [status.status_code for status in response.status or ()]
        if response.active_tasks is not None and response.standby_tasks is not None:
            self.active = frozenset(each_task(task_sets(response.active_tasks)))
            self.running |= self.active
            self.standby = frozenset(each_task(task_sets(response.standby_tasks)))
        return response


def _named(tasks: frozenset[TaskId]) -> list[TaskIds]:
    return task_ids(grouped(tasks))


def settle(members: Sequence[SimulatedMember], rounds: int = 6) -> None:
    """Send heartbeats of all members until each has its target."""
    for _ in range(rounds):
        for member in members:
            member.beat()


def settled(driver: StreamsDriver, *names: str, **fields: Any) -> list[SimulatedMember]:
    """Return members that have joined and have their targets."""
    members = [SimulatedMember(driver, name, **fields) for name in names]
    for member in members:
        member.join()
    settle(members)
    return members


def state_of(group: StreamsGroupData) -> dict[str, Any]:
    """All that records have made of a group."""
    return {
        "facts": group.facts,
        "topology": group.topology,
        "members": group.members,
        "static": group.static_members,
        "targets": group.target,
        "assignment": (group.assignment_epoch, group.assignment_timestamp_ms),
        "is stored": group.is_stored,
        "holders": vars(group.holders),
    }


def assert_same(group: StreamsGroup, other: StreamsGroup) -> None:
    """Assert that both groups have the same stored state."""
    assert state_of(group.data) == state_of(other.data)
