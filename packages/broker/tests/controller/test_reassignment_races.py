"""Reassignments while other writers change the ISR between a decision and its write, and logs stay behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller.events import ElectLeaders, ListReassignments
from ottla.broker.controller.testing import ControllerCluster, play
from ottla.broker.controller.testing_reassignments import state, until_still, with_topic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

T0 = TopicPartition("orders", 0)


def shrink_to_leader_before(cluster: ControllerCluster, write: Callable[[Leadership], bool]) -> asyncio.Event:
    """Have the leader of T0 shrink its ISR to itself right before the controller's next such write."""
    shrunk = asyncio.Event()
    active = cluster.active
    assert active is not None
    assert active._store is not None
    store, write_leaderships = active._store, active._store.write_leaderships

    async def racing(wanted: Any) -> Any:
        if not shrunk.is_set() and T0 in wanted and write(wanted[T0]):
            shrunk.set()
            now = state(cluster)
            alone = replace(now, isr=(now.leader,)).encode()
            await cluster.brokers[now.leader].session.set(now.path, alone)
        return await write_leaderships(wanted)

    store.write_leaderships = racing  # type: ignore[method-assign]
    return shrunk


async def catch_up_until(cluster: ControllerCluster, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await cluster.catch_up()
            await asyncio.sleep(0.05)


def test_no_replica_is_deleted_when_the_leader_shrinks_the_isr_to_itself_meanwhile() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        shrunk = shrink_to_leader_before(cluster, lambda wanted: 1 not in wanted.isr)
        await cluster.reassign({T0: (2,)})
        await catch_up_until(cluster, shrunk.is_set)
        await with_topic(cluster, (1,), name="later")

        assert T0 in cluster.brokers[1].data
        assert state(cluster).isr == (1,)
        await until_still(cluster, (2,))

    play(story, 1, 2)


def test_a_cancellation_keeps_the_added_leader_that_shrinks_the_isr_to_itself_meanwhile() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (3,))
        await cluster.reassign({T0: (1, 2)})
        await cluster.kill(2)
        await catch_up_until(cluster, lambda: set(state(cluster).isr) == {1, 3})
        assert cluster.active is not None
        await cluster.active.ask(ElectLeaders(frozenset({T0})))
        assert state(cluster).leader == 1
        shrunk = shrink_to_leader_before(cluster, lambda wanted: 1 not in wanted.isr)

        answers = await cluster.reassign({T0: None})

        assert shrunk.is_set()
        assert answers == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
        assert (await cluster.active.ask(ListReassignments())).reassignments[T0].adding == (1, 2)
        assert cluster.assignment("orders").adding_replicas == {0: (1, 2)}
        assert T0 in cluster.brokers[1].data
        await cluster.start(2)
        await until_still(cluster, (1, 2))

    play(story, 1, 2, 3)


def test_a_move_completes_although_a_log_that_it_leaves_cannot_be_deleted() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        cluster.brokers[1].undeletable.add(T0)
        await cluster.reassign({T0: (2,)})

        def is_over() -> bool:
            node = cluster.assignment("orders")
            return node.partitions[0] == (2,) and not node.removing_replicas

        await catch_up_until(cluster, is_over)

        assert T0 in cluster.brokers[1].data
        assert (state(cluster).leader, state(cluster).isr) == (2, (2,))

    play(story, 1, 2)
