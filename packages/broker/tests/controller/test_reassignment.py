"""Reassignment over an ensemble in memory: partitions move, moves are cancelled, and controllers die."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from ottla.broker.controller.events import ListReassignments
from ottla.broker.controller.testing import ControllerCluster, play
from ottla.broker.controller.testing_reassignments import is_still, state, until_still, with_topic
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.znodes import IsrChange, ReassignPartitions

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


async def until_isr(cluster: ControllerCluster, isr: set[int]) -> None:
    """Let replicas catch up until they are in sync."""
    async with asyncio.timeout(120):
        while set(state(cluster).isr) != isr:
            await cluster.catch_up()
            await asyncio.sleep(0.05)


async def moving(cluster: ControllerCluster) -> dict[TopicPartition, Any]:
    assert cluster.active is not None
    return (await cluster.active.ask(ListReassignments())).reassignments


# ---- moving


def test_a_partition_moves_and_the_replicas_it_left_are_deleted() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (2, 1))

        assert await cluster.reassign({T0: (3, 4)}) == {T0: ErrorCode.NONE}

        node = cluster.assignment("orders")
        assert (node.partitions[0], node.adding_replicas, node.removing_replicas) == (
            (3, 4, 1, 2),
            {0: (3, 4)},
            {0: (1, 2)},
        )
        now = (await moving(cluster))[T0]
        assert (now.replicas, now.adding, now.removing) == ((3, 4, 1, 2), (3, 4), (1, 2))
        await until_still(cluster, (3, 4), (2, 1))
        assert (state(cluster).leader, set(state(cluster).isr)) == (3, {3, 4})
        assert not await moving(cluster)

    play(story, 1, 2, 3, 4)


def test_nothing_is_removed_before_all_wanted_replicas_are_in_sync() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.reassign({T0: (2, 3)})
        await cluster.until(lambda: T0 in cluster.brokers[3].roles, "3 copies")
        await cluster.kill(3)
        await until_isr(cluster, {1, 2})
        await with_topic(cluster, (1,), name="later")
        assert T0 in cluster.brokers[1].data
        assert cluster.assignment("orders").partitions[0] == (2, 3, 1)

        await cluster.start(3)

        await until_still(cluster, (2, 3))

    play(story, 1, 2, 3)


def test_a_leader_that_stays_goes_on_leading() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))

        await cluster.reassign({T0: (3, 1)})
        await until_still(cluster, (3, 1))

        assert state(cluster).leader == 1

    play(story, 1, 2, 3)


def test_replicas_are_added_removed_and_reordered() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        for target in ((1, 2, 3), (3, 2, 1), (3, 2), (2,)):
            await cluster.reassign({T0: target})
            await until_still(cluster, target)
        assert state(cluster).leader == 2

    play(story, 1, 2, 3)


def test_a_dead_broker_is_replaced() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (3, 2))
        await cluster.kill(3)
        await cluster.until(lambda: state(cluster).leader == 2, "led by 2")

        await cluster.reassign({T0: (1, 2)})

        await until_still(cluster, (1, 2))

    play(story, 1, 2, 3)


def test_a_partition_without_any_live_replica_moves_once_one_is_back() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (3,))
        await cluster.kill(3)
        await cluster.until(lambda: state(cluster).leader == -1, "without a leader")
        assert await cluster.reassign({T0: (1,)}) == {T0: ErrorCode.NONE}

        await cluster.start(3)

        await until_still(cluster, (1,))

    play(story, 1, 2, 3)


def test_a_partition_that_never_had_a_leader_moves() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await cluster.create_topic("orders", (9,))
        await with_topic(cluster, (1,), name="later")

        assert await cluster.reassign({T0: (2,)}) == {T0: ErrorCode.NONE}

        await until_still(cluster, (2,))

    play(story, 1, 2)


# ---- cancelling and replacing


def test_a_cancelled_move_leaves_things_as_they_were() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        await cluster.reassign({T0: (3, 4)})
        await cluster.until(lambda: T0 in cluster.brokers[3].data, "3 copies")

        assert await cluster.reassign({T0: None}) == {T0: ErrorCode.NONE}

        assert cluster.assignment("orders").partitions[0] == (1, 2)
        await until_still(cluster, (1, 2))
        assert await cluster.reassign({T0: None}) == {T0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}

    play(story, 1, 2, 3, 4)


def test_a_cancelled_move_whose_added_replica_leads_gives_the_leadership_back() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        await cluster.reassign({T0: (3, 4)})
        await cluster.kill(4)
        await until_isr(cluster, {1, 2, 3})
        await cluster.kill(state(cluster).leader)
        await cluster.until(lambda: state(cluster).leader == 3, "led by an added replica")
        await cluster.until(lambda: cluster.active is not None, "a controller")

        await cluster.reassign({T0: None})

        assert state(cluster).leader == 2
        assert state(cluster).isr == (2,)

    play(story, 2, 1, 3, 4)


def test_a_cancel_that_would_lose_committed_records_is_refused() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (3,))
        await cluster.reassign({T0: (1, 2)})
        await cluster.kill(2)
        await until_isr(cluster, {3, 1})
        await cluster.kill(3)
        await cluster.until(lambda: state(cluster).isr == (1,), "an added replica alone in sync")

        assert await cluster.reassign({T0: None}) == {T0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}

        await cluster.start(2)
        await until_still(cluster, (1, 2))

    play(story, 1, 2, 3)


def test_a_move_that_replaces_a_running_one_stops_the_replicas_it_does_not_need() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.reassign({T0: (2, 3)})
        await cluster.until(lambda: T0 in cluster.brokers[2].data, "2 copies")
        await cluster.kill(3)
        await until_isr(cluster, {1, 2})

        await cluster.reassign({T0: (4,)})

        node = cluster.assignment("orders")
        assert (node.partitions[0], node.adding_replicas, node.removing_replicas) == (
            (4, 1),
            {0: (4,)},
            {0: (1,)},
        )
        assert state(cluster).isr == (1,)
        await until_still(cluster, (4,))

    play(story, 1, 2, 3, 4)


# ---- refusals


@pytest.mark.parametrize(
    ("partition", "target", "error"),
    [
        (T0, (), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (-1,), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, (1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (T0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (T1, (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TopicPartition("never-was", 0), (1,), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    partition: TopicPartition, target: tuple[int, ...] | None, error: ErrorCode
) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        before = len(cluster.ensemble.history)

        assert await cluster.reassign({partition: target}) == {partition: error}

        assert len(cluster.ensemble.history) == before

    play(story, 1, 2)


def test_a_topic_that_is_being_deleted_does_not_move() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        await cluster.kill(2)
        await cluster.delete_topic("orders")
        await cluster.until(lambda: not cluster.brokers[1].data, "deleted where it can be")

        refused = await cluster.reassign({T0: (3,)})

        assert refused == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    play(story, 1, 2, 3)


def test_a_topic_of_which_a_partition_moves_is_deleted_after_the_move_or_its_cancellation() -> None:
    async def story(cluster: ControllerCluster) -> None:
        for cancelled in (False, True):
            await with_topic(cluster, (1,))
            await cluster.reassign({T0: (2,)})
            await cluster.delete_topic("orders")
            await with_topic(cluster, (1,), name=f"later-{cancelled}")
            assert T0 in cluster.brokers[1].data
            refused = await cluster.reassign({T0: (3,)})
            assert refused == {T0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

            if cancelled:
                await cluster.reassign({T0: None})
            else:
                await until_isr(cluster, {2})

            await cluster.until(lambda: not cluster.exists(paths.deleted_topic("orders")), "marker gone")
            assert not any(T0 in broker.data for broker in cluster.brokers.values())

    play(story, 1, 2, 3)


# ---- failovers


@pytest.mark.parametrize("writes", range(8))
def test_a_move_whose_controller_dies_after_any_write_is_finished_by_the_next_one(writes: int) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (1, 2))
        seen = len(cluster.ensemble.history)
        move = asyncio.ensure_future(cluster.reassign({T0: (3, 1)}))
        dead = False
        async with asyncio.timeout(120):
            while not (is_still(cluster, (3, 1), (1, 2)) and (dead or move.done())):
                if not dead and len(cluster.ensemble.history) - seen >= writes:
                    await replace_controller(cluster)
                    dead = True
                if (
                    dead
                    and move.done()
                    and cluster.active
                    and not cluster.assignment("orders").adding_replicas
                ):
                    await again(cluster)
                await cluster.catch_up()
                await asyncio.sleep(0.002)
                cluster.invariants.check()
        await asyncio.gather(move, return_exceptions=True)

    play(story, 1, 2, 3, seed=writes)


async def replace_controller(cluster: ControllerCluster) -> None:
    """Kill the controller and start its broker again."""
    if cluster.active is not None:
        broker = cluster.active.broker_id
        await cluster.kill(broker)
        await cluster.start(broker)


async def again(cluster: ControllerCluster) -> None:
    """Ask once more, as a client does that got no answer."""
    try:
        await cluster.reassign({T0: (3, 1)})
    except NotController:
        await asyncio.sleep(0.1)


def test_a_cancellation_whose_controller_dies_can_be_asked_for_again() -> None:
    async def story(cluster: ControllerCluster) -> None:
        for delay in range(12):
            await cancelled_in_a_failover(cluster, delay)

    play(story, 1, 2, 3)


async def cancelled_in_a_failover(cluster: ControllerCluster, delay: int) -> None:
    await with_topic(cluster, (1, 2), name=f"orders-{delay}")
    partition = TopicPartition(f"orders-{delay}", 0)
    await cluster.reassign({partition: (3,)})
    cancel = asyncio.ensure_future(cluster.reassign({partition: None}))
    await asyncio.sleep(delay * 0.001)
    await replace_controller(cluster)
    await asyncio.gather(cancel, return_exceptions=True)
    await cluster.until(lambda: cluster.active is not None, "a controller")
    await cluster.until(lambda: cluster.settled(partition.topic), "led")

    again = await cluster.reassign({partition: None})

    assert again[partition] in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    assert cluster.assignment(partition.topic).partitions[0] == (1, 2)
    now = cluster.state(partition.topic)
    assert now is not None
    assert 3 not in now.isr


# ---- the old tool's znode


async def write_znode(cluster: ControllerCluster, moves: dict[tuple[str, int], tuple[int, ...]]) -> None:
    node = ReassignPartitions(moves)
    await cluster.brokers[2].session.create(node.path, node.encode())


def test_the_old_tools_znode_stays_until_everything_in_it_has_moved() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,), (1,))
        await write_znode(cluster, {("orders", 0): (2,), ("orders", 1): (3,), ("never-was", 0): (1,)})
        await cluster.until(lambda: len(cluster.assignment("orders").adding_replicas) == 2, "begun")

        def left() -> set[tuple[str, int]]:
            data = cluster.ensemble.tree.node(paths.REASSIGN_PARTITIONS).data
            return set(ReassignPartitions.decode(data).replicas)

        await cluster.until(lambda: left() == {("orders", 0), ("orders", 1)}, "the unknown topic removed")

        await until_still(cluster, (2,), (3,))

        await cluster.until(lambda: not cluster.exists(paths.REASSIGN_PARTITIONS), "removed")

    play(story, 1, 2, 3)


def test_a_request_through_the_api_replaces_that_of_the_znode() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await write_znode(cluster, {("orders", 0): (2,)})
        await cluster.until(lambda: bool(cluster.assignment("orders").adding_replicas), "begun")

        await cluster.reassign({T0: (3,)})

        assert not cluster.exists(paths.REASSIGN_PARTITIONS)
        await until_still(cluster, (3,))

    play(story, 1, 2, 3)


def test_a_znode_that_was_written_without_a_controller_is_found_by_the_next_one() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2,))
        await cluster.kill(1)
        await write_znode(cluster, {("orders", 0): (3,)})

        await cluster.until(lambda: cluster.active is not None, "a controller")

        await until_still(cluster, (3,))
        await cluster.until(lambda: not cluster.exists(paths.REASSIGN_PARTITIONS), "removed")

    play(story, 1, 2, 3)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version":1,"partitions":[{"topic":"orders"}]}'])
def test_a_malformed_znode_is_named_and_removed(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.brokers[1].session.create(paths.REASSIGN_PARTITIONS, data)

        await cluster.until(lambda: not cluster.exists(paths.REASSIGN_PARTITIONS), "removed")

        await with_topic(cluster, (1,), name="later")

    play(story, 1, 2)
    assert [one.levelno for one in caplog.records if one.message == "reassignment ignored"] == [logging.ERROR]


# ---- what else changes a topic meanwhile


def test_partitions_added_by_hand_during_a_move_are_kept() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.reassign({T0: (2,)})
        node = cluster.assignment("orders")
        larger = replace(node, partitions={**node.partitions, 1: (1,)})
        await cluster.brokers[1].session.set(node.path, larger.encode())

        await until_still(cluster, (2,), (1,))

    play(story, 1, 2)


def test_an_isr_that_a_leader_wrote_itself_completes_a_move() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.reassign({T0: (1, 2)})
        session = cluster.brokers[1].session
        before = state(cluster)
        await session.set(before.path, replace(before, isr=(1, 2)).encode())

        await session.create(
            IsrChange((("orders", 0),)).path, IsrChange((("orders", 0),)).encode(), sequential=True
        )

        await cluster.until(lambda: is_still(cluster, (1, 2)), "complete")
        await cluster.until(
            lambda: not cluster.ensemble.tree.node(paths.ISR_CHANGE_NOTIFICATION).children, "removed"
        )

    play(story, 1, 2)
