"""A controller handles thousands of partitions in slices, between which other tasks run."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest

from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.broker.cluster.zookeeper_session import READS_AT_ONCE
from ottla.broker.controller.control_request_batch import ControlRequestBatch, Publish
from ottla.broker.controller.controller_context import ControllerContext, LiveBroker, Topic
from ottla.broker.controller.controllership import Controllership
from ottla.broker.controller.events import (
    Effect,
    Elected,
    Event,
    PartitionStates,
    ReadUncleanTopics,
    TopicsRead,
    WriteLeaderships,
    WriteResult,
)
from ottla.broker.controller.state_machine import Machine
from ottla.broker.controller.zookeeper_store import MULTIS_AT_ONCE, Store
from ottla.broker.runtime.loop_budget import SLICE
from ottla.protocol.messages.control_requests import LeaderAndIsrRequest, UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.session import Operations, SessionExpired, Stat
from ottla.zookeeper.znodes import PartitionState

PARTITIONS = 2_000
LOOKS = 8
"""How often the assignment of one partition is looked up within one loop, at most."""


class WatchedContext(ControllerContext):
    """Counts how often assignments are looked up."""

    looked_up = 0

    def assignment(self, partition: TopicPartition) -> Assignment:
        self.looked_up += 1
        return super().assignment(partition)


class BusyZooKeeper:
    """Counts the operations that are under way at once."""

    def __init__(self) -> None:
        self.under_way = self.most = self.reads = 0
        self.fails_at = PARTITIONS + 1

    async def get(self, path: str, watch: object = None) -> tuple[bytes, Stat]:
        self.reads += 1
        if self.reads == self.fails_at:
            raise SessionExpired(path)
        await self._take_time()
        node = PartitionState("orders", 0, leader=1, leader_epoch=0, isr=(1,), controller_epoch=1)
        return node.encode(), Stat(*[0] * 11)

    async def multi(self, operations: Iterable[object]) -> list[None]:
        await self._take_time()
        return [None for _ in operations]

    async def _take_time(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1


def elected() -> Elected:
    """A cluster of three brokers, the first of which has just died."""
    names = [TopicPartition("orders", number) for number in range(PARTITIONS)]
    topic = Topic(uuid.UUID(int=1), {one.partition: Assignment((1, 2, 3)) for one in names})
    states = {one: Leadership(1, 0, (1, 2, 3), 1, 0) for one in names}
    return Elected(
        {2: LiveBroker(2, 12), 3: LiveBroker(3, 13)}, {"orders": topic}, PartitionStates(states), frozenset()
    )


def result_of(effect: Effect) -> Mapping[TopicPartition, WriteResult] | frozenset[str] | None:
    match effect:
        case WriteLeaderships(leaderships):
            return {
                p: WriteResult(replace(one, partition_epoch=one.partition_epoch + 1), ours=True)
                for p, one in leaderships.items()
            }
        case ReadUncleanTopics():
            return frozenset()
    return None


def store(zookeeper: BusyZooKeeper) -> Store:
    operations = cast("Operations", zookeeper)
    return Store(operations, Controllership(2, 2), uuid.uuid4, lambda topic: lambda event: None)


def test_a_new_controller_takes_over_many_partitions_in_slices_and_elects_a_leader_of_each() -> None:
    context = WatchedContext(2, 2)
    steps, result, most = Machine(context).step(elected()), cast("Any", None), 0
    while True:
        context.looked_up = 0
        try:
            result = result_of(steps.send(result))
        except StopIteration:
            break
        most = max(most, context.looked_up)

    assert most <= LOOKS * SLICE
    assert {one.leader for one in context.leaderships.values()} == {2}
    assert len(context.leaderships) == PARTITIONS


def test_brokers_that_are_told_of_the_same_partitions_share_their_states() -> None:
    event = elected()
    context = ControllerContext(2, 2, dict(event.brokers), topics=dict(event.topics))
    context.leaderships = dict(event.states.leaderships)
    batch = ControlRequestBatch(context)
    for partition in context.partitions():
        batch.lead_or_follow(partition, (2, 3))

    sent = [one for one in batch.requests() if isinstance(one, Publish)]

    kinds = [(one.broker.id, type(one.request)) for one in sent]
    roles = [one.request for one in sent if isinstance(one.request, LeaderAndIsrRequest)]
    assert kinds == [
        (2, LeaderAndIsrRequest), (3, LeaderAndIsrRequest),
        (2, UpdateMetadataRequest), (3, UpdateMetadataRequest),
    ]  # fmt: skip
    assert [one.broker_epoch for one in roles] == [12, 13]
    assert roles[0].topic_states[0].partition_states is roles[1].topic_states[0].partition_states
    assert len(roles[0].topic_states[0].partition_states) == PARTITIONS


def test_brokers_that_are_told_of_other_partitions_get_states_of_their_own() -> None:
    event = elected()
    context = ControllerContext(2, 2, dict(event.brokers), topics=dict(event.topics))
    context.leaderships = dict(event.states.leaderships)
    batch = ControlRequestBatch(context)
    batch.lead_or_follow(TopicPartition("orders", 0), (2,))
    batch.lead_or_follow(TopicPartition("orders", 1), (3,), is_new=True)

    sent = [one.request for one in batch.requests() if isinstance(one, Publish)]

    roles = [one for one in sent if isinstance(one, LeaderAndIsrRequest)]
    told = [
        [(one.partition_index, one.is_new) for one in roles[n].topic_states[0].partition_states]
        for n in (0, 1)
    ]
    assert told == [[(0, False)], [(1, True)]]


async def test_states_are_read_a_few_at_a_time() -> None:
    zookeeper = BusyZooKeeper()

    states = await store(zookeeper).states(elected().states.leaderships)

    assert len(states.leaderships) == PARTITIONS
    assert zookeeper.most == READS_AT_ONCE


async def test_no_further_state_is_read_once_the_session_is_over() -> None:
    zookeeper = BusyZooKeeper()
    zookeeper.fails_at = 500

    with pytest.raises(SessionExpired):
        await store(zookeeper).states(elected().states.leaderships)
    for _ in range(PARTITIONS):
        await asyncio.sleep(0)

    assert zookeeper.reads <= 500 + READS_AT_ONCE


async def test_states_are_written_a_few_transactions_at_a_time() -> None:
    zookeeper = BusyZooKeeper()
    wanted = elected().states.leaderships

    written = await store(zookeeper).write_leaderships(wanted)

    assert written.keys() == wanted.keys()
    assert all(one.ours for one in written.values())
    assert zookeeper.most == MULTIS_AT_ONCE


def run(machine: Machine, event: Event) -> None:
    steps, result = machine.step(event), cast("Any", None)
    with suppress(StopIteration):
        while True:
            result = result_of(steps.send(result))


def test_a_topic_is_created_without_a_look_at_each_that_exists() -> None:
    brokers = {2: LiveBroker(2, 12)}
    topics = {f"t{n}": Topic(uuid.UUID(int=n), {0: Assignment((2,))}) for n in range(1, 1_001)}
    machine = Machine(context := WatchedContext(2, 2))
    run(machine, Elected(brokers, topics, PartitionStates(), frozenset()))
    run(machine, TopicsRead(context.topics))
    before, context.looked_up = dict(context.topics), 0

    run(machine, TopicsRead(before | {"new": Topic(uuid.UUID(int=0), {0: Assignment((2,))})}))

    assert TopicPartition("new", 0) in context.leaderships
    assert all(context.topics[name] is topic for name, topic in before.items())
    assert context.looked_up < LOOKS
