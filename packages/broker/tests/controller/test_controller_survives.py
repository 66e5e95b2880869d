"""A controller survives surprises: exceptions, unreadable znodes, settings that change the rules."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from ottla.broker.controller.controllership import Candidacy
from ottla.broker.controller.testing import ControllerCluster, run_in_virtual_time
from ottla.broker.peers.controller_requests import AlterPartition, ProposedIsr
from ottla.protocol.errors import NotController
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.session import Create
from ottla.zookeeper.znodes import ControllerEpoch, PartitionState, TopicAssignment

Story = Callable[[ControllerCluster], Coroutine[Any, Any, None]]
T0 = TopicPartition("orders", 0)


def play(story: Story, *brokers: int, seed: int = 0) -> None:
    """Run a story on a cluster whose first broker is the controller."""

    async def main() -> None:
        async with ControllerCluster(seed) as cluster:
            await cluster.start(*brokers)
            await cluster.until(lambda: cluster.active is not None, "a controller")
            await cluster.until(lambda: all(cluster.brokers[one].epoch >= 0 for one in brokers), "registered")
            await story(cluster)
            cluster.invariants.check()

    run_in_virtual_time(main())


async def with_topic(cluster: ControllerCluster, *replicas: tuple[int, ...], name: str = "orders") -> None:
    await cluster.create_topic(name, *replicas)
    await cluster.until(lambda: all(cluster.settled(name, p) for p in range(len(replicas))), f"{name} led")


async def rewrite_assignment(cluster: ControllerCluster, partitions: dict[int, tuple[int, ...]]) -> None:
    data = cluster.ensemble.tree.node(paths.topic("orders")).data
    node = replace(TopicAssignment.decode("orders", data), partitions=partitions)
    await cluster.brokers[1].session.set(node.path, node.encode())


async def repair(cluster: ControllerCluster, node: PartitionState) -> None:
    """Write a state again, under the present controller epoch."""
    epoch = ControllerEpoch.decode(cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).data).epoch
    session = next(iter(cluster.brokers.values())).session
    await session.set(node.path, replace(node, controller_epoch=epoch).encode())


# ---- exceptions


def test_any_exception_ends_the_controllership_and_a_controller_is_elected_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: ControllerCluster) -> None:
        active = cluster.active
        assert active is not None
        nonsense = ProposedIsr(0, 0, cast("Any", None))
        await with_topic(cluster, (1, 2))

        with pytest.raises(NotController):
            await active.ask(AlterPartition(1, cluster.brokers[1].epoch, {T0: nonsense}))

        assert not active.is_active
        await cluster.until(lambda: cluster.active is not None, "a controller")
        await with_topic(cluster, (2, 1), name="later")

    play(story, 1, 2)

    failed = [one for one in caplog.records if one.message == "the controller failed"]
    assert [one.exc_info is not None for one in failed] == [True]


def test_a_broker_that_fails_as_controller_again_and_again_leaves_it_to_another() -> None:
    async def story(cluster: ControllerCluster) -> None:
        def broken(broker: Any) -> Any:
            raise ValueError("cannot connect")

        first = cluster.active
        assert first is not None
        first._connect = broken
        await cluster.brokers[first.broker_id].session.delete(paths.CONTROLLER)
        epoch = cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).version

        await cluster.until(
            lambda: cluster.active is not None and cluster.active.broker_id != first.broker_id, "another one"
        )

        assert cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).version - epoch <= 4
        await with_topic(cluster, (2, 1))

    play(story, 1, 2)


def test_a_move_in_which_the_controller_fails_is_finished_by_the_next_controller() -> None:
    async def story(cluster: ControllerCluster) -> None:
        async def broken(wanted: Any) -> Any:
            raise ValueError("cannot be written")

        await with_topic(cluster, (2,))
        active = cluster.active
        assert active is not None
        await cluster.reassign({T0: (3,)})
        active._store.write_assignments = broken  # type: ignore[union-attr, method-assign]
        epoch = cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).version

        async with asyncio.timeout(60):
            while cluster.assignment("orders").partitions[0] != (3,):
                await cluster.catch_up()
                await asyncio.sleep(0.05)

        assert cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).version > epoch
        await cluster.until(lambda: cluster.settled("orders"), "led by 3")
        await cluster.until(lambda: T0 not in cluster.brokers[2].data, "deleted on 2")

    play(story, 1, 2, 3)


def test_the_balance_leaves_partitions_that_move_where_they_are() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1,))
        await cluster.reassign({T0: (2, 3)})
        await cluster.until(lambda: T0 in cluster.brokers[3].data, "3 copies")
        await cluster.kill(3)
        async with asyncio.timeout(60):
            while set(cluster.state("orders").isr) != {1, 2}:  # type: ignore[union-attr]
                await cluster.catch_up()
                await asyncio.sleep(0.05)
        assert cluster.active is not None

        cluster.active.balance_leaders(0.0)
        await with_topic(cluster, (1,), name="later")

        state = cluster.state("orders")
        assert state is not None
        assert state.leader == 1

    play(story, 1, 2, 3)


def test_after_each_failure_the_next_candidacy_waits_longer_up_to_a_limit_and_forgives() -> None:
    candidacy, now_ms, waits = Candidacy(), 1000.0, []
    assert candidacy.wait_ms(now_ms) == 0

    for _ in range(9):
        candidacy.failed(now_ms)
        waits.append(candidacy.wait_ms(now_ms))
        now_ms += waits[-1]
        assert candidacy.wait_ms(now_ms) == 0
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]

    candidacy.failed(now_ms + 61_000)
    assert candidacy.wait_ms(now_ms + 61_000) == 100


def test_a_partition_that_vanishes_from_its_topics_znode_is_forgotten() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (2, 1))
        active = cluster.active
        assert active is not None
        assert active.context is not None

        await rewrite_assignment(cluster, {0: (1, 2)})
        await cluster.until(lambda: len(active.context.topics["orders"].partitions) == 1, "read")  # type: ignore[union-attr]
        active.balance_leaders(0.0)
        await with_topic(cluster, (2, 1), name="later")

        assert active.is_active
        assert TopicPartition("orders", 1) not in active.context.leaderships

    play(story, 1, 2)


# ---- unreadable znodes


def test_an_unreadable_state_is_set_aside_and_named_once_and_the_rest_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (1, 2))
        await with_topic(cluster, (1, 2), name="other")
        node = cluster.state("orders")
        assert node is not None
        await cluster.brokers[2].session.set(node.path, b"{nonsense")

        assert cluster.active is not None
        await cluster.kill(cluster.active.broker_id)

        await cluster.until(lambda: cluster.settled("orders", 1) and cluster.settled("other"), "the rest led")
        await with_topic(cluster, (2,), name="later")
        [broker] = cluster.brokers.values()
        assert broker.metadata[T0] == -1
        named = [one for one in caplog.records if getattr(one, "path", "") == node.path]
        assert [one.levelno for one in named] == [logging.ERROR]

        await repair(cluster, node)
        await cluster.until(lambda: cluster.settled("orders", 0), "led once it can be read")

    play(story, 1, 2)


def test_an_unreadable_state_that_is_removed_is_made_as_for_a_new_partition() -> None:
    async def story(cluster: ControllerCluster) -> None:
        node = TopicAssignment("orders", {0: (1, 2)}, uuid.UUID(int=7))
        state = paths.partition_state("orders", 0)
        parents = [Create(paths.partitions("orders")), Create(paths.partition("orders", 0))]
        session = cluster.brokers[1].session
        await session.multi([Create(node.path, node.encode()), *parents, Create(state, b"")])
        await cluster.until(lambda: cluster.brokers[2].metadata.get(T0) == -1, "set aside")
        await with_topic(cluster, (2,), name="later")

        await session.delete(state)

        await cluster.until(lambda: cluster.settled("orders"), "led")

    play(story, 1, 2)


def test_a_state_that_becomes_unreadable_under_a_controller_is_set_aside() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (2, 3), (2, 3))
        node = cluster.state("orders")
        assert node is not None
        await cluster.brokers[2].session.set(node.path, b"[]")
        active = cluster.active
        assert active is not None

        await cluster.kill(2)

        await cluster.until(lambda: cluster.settled("orders", 1), "the other partition led")
        await with_topic(cluster, (3,), name="later")
        assert active.is_active
        await repair(cluster, node)
        await cluster.until(lambda: cluster.settled("orders"), "led once it can be read")

    play(story, 1, 2, 3)


def test_a_topic_with_an_unreadable_state_can_be_deleted() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2))
        node = cluster.state("orders")
        assert node is not None
        await cluster.brokers[1].session.set(node.path, b"{")
        assert cluster.active is not None
        await cluster.brokers[1].session.delete(paths.CONTROLLER)
        await cluster.until(lambda: cluster.brokers[2].metadata.get(T0) == -1, "set aside")

        await cluster.delete_topic("orders")

        await cluster.until(lambda: not cluster.exists(paths.deleted_topic("orders")), "marker gone")
        await with_topic(cluster, (1, 2))

    play(story, 1, 2)


@pytest.mark.parametrize(
    "change", [{"leader_epoch": 2**40}, {"isr": (2, 2**40)}, {"controller_epoch": 2**31 - 1}]
)
def test_a_state_with_numbers_that_no_request_could_carry_is_set_aside(change: dict[str, Any]) -> None:
    async def story(cluster: ControllerCluster) -> None:
        await with_topic(cluster, (1, 2), (1, 2))
        node = cluster.state("orders")
        assert node is not None
        await cluster.brokers[1].session.set(node.path, replace(node, **change).encode())
        assert cluster.active is not None

        await cluster.brokers[1].session.delete(paths.CONTROLLER)

        await cluster.until(lambda: cluster.brokers[2].metadata.get(T0) == -1, "set aside")
        await with_topic(cluster, (2,), name="later")
        await repair(cluster, node)
        await cluster.until(lambda: cluster.settled("orders"), "led once it can be read")

    play(story, 1, 2)


def test_no_controller_is_elected_over_an_epoch_that_no_request_could_carry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        # Without the invariants at the end: an epoch written by hand violates that of the epoch.
        async with ControllerCluster(0) as cluster:
            await cluster.start(1, 2)
            await cluster.until(lambda: cluster.active is not None, "a controller")
            session = cluster.brokers[1].session
            await session.set(paths.CONTROLLER_EPOCH, b"1099511627776")
            await session.delete(paths.CONTROLLER)
            await asyncio.sleep(30)
            assert cluster.ensemble.tree.node(paths.CONTROLLER_EPOCH).data == b"1099511627776"
            assert cluster.active is None

            await session.set(paths.CONTROLLER_EPOCH, b"7")

            await asyncio.sleep(30)  # virtual, and six times the longest wait for the next candidacy
            assert cluster.active is not None

    run_in_virtual_time(main())

    reasons = [one.__dict__.get("reason", "") for one in caplog.records if one.name == "controller"]
    assert any("/controller_epoch" in reason and "32 bits" in reason for reason in reasons)


# ---- unclean elections


async def only_out_of_sync(cluster: ControllerCluster) -> None:
    """Leave a partition with a live replica, and without a live one that is in sync."""
    await with_topic(cluster, (2, 3))
    await cluster.kill(3)
    await cluster.until(lambda: (s := cluster.state("orders")) is not None and s.isr == (2,), "shrunk")
    await cluster.kill(2)
    await cluster.start(3)
    await cluster.until(lambda: cluster.brokers[3].alive == {1, 3}, "3 knows the cluster")


def test_a_topic_that_allows_unclean_elections_when_its_last_replica_dies_is_led() -> None:
    async def story(cluster: ControllerCluster) -> None:
        cluster.unclean_topics.add("orders")

        await only_out_of_sync(cluster)

        await cluster.until(lambda: cluster.settled("orders"), "an unclean leader")

    play(story, 1, 2, 3)


def test_allowing_unclean_elections_later_elects() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await only_out_of_sync(cluster)
        state = cluster.state("orders")
        assert state is not None
        assert state.leader == -1
        cluster.unclean_topics.add("orders")
        assert cluster.active is not None

        cluster.active.unclean_election_allowed("orders")

        await cluster.until(lambda: cluster.settled("orders"), "an unclean leader")

    play(story, 1, 2, 3)


def test_allowing_them_by_the_default_of_all_topics_elects_where_no_topic_forbids_it() -> None:
    async def story(cluster: ControllerCluster) -> None:
        await only_out_of_sync(cluster)
        assert cluster.active is not None

        cluster.active.unclean_election_allowed(None)
        await with_topic(cluster, (1,), name="later")

        state = cluster.state("orders")
        assert state is not None
        assert state.leader == -1
        cluster.unclean_topics.add("orders")
        cluster.active.unclean_election_allowed(None)
        await cluster.until(lambda: cluster.settled("orders"), "an unclean leader")

    play(story, 1, 2, 3)
