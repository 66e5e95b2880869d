"""The controller and replicas without room: it is answered KAFKA_STORAGE_ERROR, and elects other leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from ottla.broker.controller.events import ElectLeaders
from ottla.broker.controller.testing import ControllerCluster, play
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.znodes import LogDirEvent


async def with_topic(cluster: ControllerCluster, *replicas: tuple[int, ...]) -> None:
    await cluster.create_topic("orders", *replicas)
    await cluster.until(lambda: all(cluster.settled("orders", p) for p in range(len(replicas))), "led")


def leader_of(cluster: ControllerCluster) -> int | None:
    state = cluster.state("orders")
    return None if state is None else state.leader


async def announce_room(cluster: ControllerCluster, broker_id: int, *, is_full: bool) -> None:
    """Fill or empty the disk of a broker, and announce it in ZooKeeper."""
    broker = cluster.brokers[broker_id]
    broker.is_full = is_full
    event = LogDirEvent(broker_id)
    await broker.session.create(event.path, event.encode(), sequential=True, make_parents=True)


def test_replicas_without_room_leave_leaderships_and_isrs_until_they_have_it() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (2, 1), (1,))

        await announce_room(cluster, 1, is_full=True)

        def has_moved() -> bool:
            states = [cluster.state("orders", number) for number in range(3)]
            return [(one.leader, one.isr) for one in states if one] == [(2, (2,)), (2, (2,)), (1, (1,))]

        await cluster.until(has_moved, "leaderships and ISRs without broker 1")
        await cluster.catch_up()  # proposes broker 1 for the ISRs
        assert has_moved()

        await announce_room(cluster, 1, is_full=False)

        async def is_back() -> bool:
            await cluster.catch_up()
            state = cluster.state("orders")
            return state is not None and set(state.isr) == {1, 2}

        for _ in range(100):
            if await is_back():
                break
            await asyncio.sleep(0.1)
        assert await is_back()
        assert cluster.active is not None
        await cluster.active.ask(ElectLeaders(frozenset({TopicPartition("orders", 0)})))
        state = cluster.state("orders")
        assert state is not None
        assert state.leader == 1

    play(story, 1, 2)


def test_two_disks_that_fill_up_at_once_leave_a_leader() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))

        await announce_room(cluster, 1, is_full=True)
        await announce_room(cluster, 2, is_full=True)

        def has_one_member() -> bool:
            state = cluster.state("orders")
            return state is not None and len(state.isr) == 1 and state.leader in state.isr

        await cluster.until(has_one_member, "the last member of the ISR leads")

    play(story, 1, 2)


def announce_failure(cluster: ControllerCluster, broker_id: int) -> Coroutine[Any, Any, None]:
    """Fail the log directory of a broker with its replica of the topic."""
    cluster.brokers[broker_id].failed.add(TopicPartition("orders", 0))
    return announce_room(cluster, broker_id, is_full=False)


async def without_replica_3(cluster: ControllerCluster) -> None:
    """Create a topic that allows unclean elections; replica 3 is live, and not in sync."""
    cluster.unclean_topics.add("orders")
    await with_topic(cluster, (1, 2, 3))
    await cluster.kill(3)
    await cluster.until(lambda: (s := cluster.state("orders")) is not None and s.isr == (1, 2), "shrunk")
    await cluster.start(3)
    await cluster.until(lambda: 3 in cluster.brokers[1].alive, "broker 3 back")


@pytest.mark.parametrize("seed", range(4))
def test_two_disks_that_fill_up_at_once_are_no_reason_for_an_unclean_election(seed: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await without_replica_3(cluster)

        await asyncio.gather(*(announce_room(cluster, broker_id, is_full=True) for broker_id in (1, 2)))

        def has_one_member() -> bool:
            state = cluster.state("orders")
            return state is not None and len(state.isr) == 1 and cluster.settled("orders")

        await cluster.until(has_one_member, "one member of the ISR leads")
        await asyncio.sleep(10)
        state = cluster.state("orders")
        assert state is not None
        assert state.leader in (1, 2)

    play(story, 1, 2, 3, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_failed_directories_of_the_whole_isr_are_a_reason_for_an_unclean_election(seed: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await without_replica_3(cluster)

        await asyncio.gather(*(announce_failure(cluster, broker_id) for broker_id in (1, 2)))

        await cluster.until(lambda: leader_of(cluster) == 3 and cluster.settled("orders"), "3 leads")

    play(story, 1, 2, 3, seed=seed)


def test_an_unclean_election_that_is_allowed_later_replaces_failed_directories() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await without_replica_3(cluster)
        cluster.unclean_topics.clear()
        await asyncio.gather(*(announce_failure(cluster, broker_id) for broker_id in (1, 2)))
        await cluster.until(lambda: leader_of(cluster) == -1, "no leader")
        cluster.unclean_topics.add("orders")
        assert cluster.active is not None

        cluster.active.unclean_election_allowed("orders")

        await cluster.until(lambda: leader_of(cluster) == 3 and cluster.settled("orders"), "3 leads")

    play(story, 1, 2, 3)


def test_a_topic_is_deleted_where_there_is_no_room() -> None:
    """The room that its deletion makes may be all that the disk waits for."""

    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        await announce_room(cluster, 1, is_full=True)
        await cluster.until(lambda: leader_of(cluster) == 2, "moved")

        await cluster.delete_topic("orders")

        await cluster.until(lambda: not cluster.exists(paths.topic("orders")), "the topic gone")
        assert TopicPartition("orders", 0) not in cluster.brokers[1].data

    play(story, 1, 2)
