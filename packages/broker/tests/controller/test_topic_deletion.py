"""The cost of deleting topics: how many requests and transactions it takes, and topics that were edited."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any, cast

from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.broker.controller.control_request_batch import Publish
from ottla.broker.controller.controller_context import ControllerContext, LiveBroker, ReplicaState, Topic
from ottla.broker.controller.events import (
    DeleteTopics,
    Effect,
    Elected,
    Event,
    Later,
    PartitionStates,
    ReplyReceived,
)
from ottla.broker.controller.state_machine import Machine
from ottla.broker.controller.testing import ControllerCluster, play
from ottla.broker.controller.topic_deletion import TOPICS_AT_ONCE
from ottla.broker.runtime.loop_budget import SLICE
from ottla.protocol.messages.control_requests import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import Create

PARTITIONS = 60
TOPICS = 2_000


class WatchedContext(ControllerContext):
    """Counts how often replicas are looked at between two effects."""

    looks = most_looks = 0

    def replica_state(self, partition: TopicPartition, broker: int) -> ReplicaState:
        self.looks += 1
        self.most_looks = max(self.most_looks, self.looks)
        return super().replica_state(partition, broker)

    def effects(self, machine: Machine, event: Event) -> list[Effect]:
        found: list[Effect] = []
        steps, result = machine.step(event), cast("Any", None)
        with suppress(StopIteration):
            while True:
                self.looks = 0
                found.append(steps.send(result))
        return found


def _marked(names: list[str]) -> Elected:
    """The topics of one broker, which are all marked for deletion."""
    topics = {
        name: Topic(uuid.UUID(int=number), {0: Assignment((2,))}) for number, name in enumerate(names, 1)
    }
    states = {TopicPartition(name, 0): Leadership(2, 0, (2,), 1, 0) for name in names}
    return Elected({2: LiveBroker(2, 12)}, topics, PartitionStates(states), frozenset(names))


def test_thousands_of_topics_are_deleted_some_in_each_event_so_that_others_come_between() -> None:
    context = WatchedContext(2, 2)
    machine = Machine(context)
    begun = context.effects(machine, _marked([f"orders-{number}" for number in range(TOPICS)]))
    (*_, asked) = [one for one in begun if isinstance(one, Publish)]
    assert isinstance(asked.request, StopReplicaRequest)

    events: list[Event] = [ReplyReceived(asked.broker, asked.request, StopReplicaResponse())]
    removed: list[int] = []
    for event in events:
        effects = context.effects(machine, event)
        removed.append(sum(len(one.topics) for one in effects if isinstance(one, DeleteTopics)))
        events += [one.event for one in effects if isinstance(one, Later)]

    assert max(removed) == TOPICS_AT_ONCE
    assert sum(removed) == TOPICS
    assert not context.topics
    assert context.most_looks <= 2 * SLICE


async def _with_topic(cluster: ControllerCluster, name: str, *replicas: tuple[int, ...]) -> None:
    await cluster.create_topic(name, *replicas)
    await cluster.until(lambda: all(cluster.settled(name, p) for p in range(len(replicas))), f"{name} led")


async def _gone(cluster: ControllerCluster, *names: str) -> None:
    await cluster.until(
        lambda: (
            not any(cluster.exists(path(one)) for one in names for path in (paths.topic, paths.deleted_topic))
        ),
        "topics and markers gone",
    )


def test_a_broker_is_asked_once_to_delete_what_it_has_of_topics_marked_together() -> None:
    names = [f"orders-{number}" for number in range(8)]

    async def story(cluster: ControllerCluster) -> None:
        for name in names:
            await _with_topic(cluster, name, (1, 2), (2, 1))
        await cluster.delete_topic("never-was")  # so that the parent of the markers is there
        await _gone(cluster, "never-was")
        before = len(cluster.brokers[2].requests)

        await cluster.brokers[1].session.multi([Create(paths.deleted_topic(name)) for name in names])
        await _gone(cluster, *names)

        requests = cluster.brokers[2].requests[before:]
        stops = [request for request in requests if isinstance(request, StopReplicaRequest)]
        deleting = [
            r for r in stops if any(s.delete_partition for t in r.topic_states for s in t.partition_states)
        ]
        assert len(deleting) == 1
        assert {topic.topic_name for topic in deleting[0].topic_states} == set(names)
        assert len(stops) == 2, "one stops the replicas, one deletes them"

    play(story, 1, 2)


def test_the_znodes_of_many_partitions_are_removed_in_few_transactions() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await _with_topic(cluster, "orders", *((1,) for _ in range(PARTITIONS)))
        before = len(cluster.ensemble.history)

        await cluster.delete_topic("orders")
        await _gone(cluster, "orders")

        assert len(cluster.ensemble.history) - before < PARTITIONS / 4

    play(story, 1)


def test_a_topic_is_deleted_whose_znodes_were_edited_by_hand() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await _with_topic(cluster, "orders", *((1,) for _ in range(PARTITIONS)))
        session = cluster.brokers[1].session
        await session.delete(paths.partition_state("orders", PARTITIONS - 1))
        await session.create(f"{paths.partition('orders', 3)}/note", b"from a person")

        await cluster.delete_topic("orders")

        await _gone(cluster, "orders")

    play(story, 1)
