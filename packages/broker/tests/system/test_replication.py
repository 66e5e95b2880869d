"""Replication between broker processes: acks=all, a killed leader, its return, and identical logs."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.testing import BrokerCluster
from ottla.protocol.errors import KafkaError
from peers.one_partition import BOUND_S, OnePartition, one_partition, until

CLUSTER_SETTINGS = {"min.insync.replicas": "2", "auto.leader.rebalance.enable": "false"}

pytestmark = pytest.mark.timeout(240)


async def test_records_survive_the_leader_and_it_comes_back_with_the_same_log(orders: OnePartition) -> None:
    brokers = orders.cluster.brokers
    await orders.create()
    await orders.produce(range(1_000))
    first = await orders.leader()

    brokers[first].kill()
    second = await orders.leader(not_node=first)
    assert await orders.consume(1_000) == list(range(1_000))
    await orders.produce(range(1_000, 2_000))

    brokers[first].restart()
    await orders.in_sync(1, 2, 3)
    assert await orders.leader() == second
    assert await orders.consume(2_000) == list(range(2_000))

    async def are_alike() -> bool:
        return len({orders.log(node) for node in (1, 2, 3)}) == 1

    await until(are_alike)
    assert orders.log(first)


async def test_a_group_keeps_its_offsets_when_its_coordinator_is_killed(orders: OnePartition) -> None:
    admin, group = orders.admin, f"readers of {orders.topic}"
    await orders.create()
    await admin.groups.commit(group, {orders.place: 42})
    before = await admin.cluster.coordinator(group)

    orders.cluster.brokers[before].kill()

    async def moved() -> bool:
        admin.cluster.forget_coordinator(group)
        try:
            return await admin.cluster.coordinator(group) != before
        except KafkaError:
            return False

    await until(moved)
    async with asyncio.timeout(BOUND_S):
        (found,) = await admin.groups.offsets(group)
    assert found.offset == 42


@pytest.mark.ottla_broker(
    min_insync_replicas=2,
    auto_leader_rebalance_enable="false",
    replica_lag_time_max_ms=2_000,
    zookeeper_session_timeout_ms=60_000,
)
async def test_the_isr_shrinks_without_a_follower_that_sleeps_and_grows_when_it_wakes(
    ottla_cluster: BrokerCluster,
) -> None:
    async with one_partition(ottla_cluster) as orders:
        await orders.create()
        leader, controller = await orders.leader(), await orders.controller()
        sleeper = next(node for node in (1, 2, 3) if node not in (leader, controller))
        await orders.produce(range(100))

        ottla_cluster.brokers[sleeper].pause()
        try:
            async with one_partition(ottla_cluster, orders.topic, without=sleeper) as awake:
                await awake.produce(range(100, 200))
                await awake.in_sync(*({1, 2, 3} - {sleeper}))
        finally:
            ottla_cluster.brokers[sleeper].resume()

        await orders.in_sync(1, 2, 3)
        assert await orders.consume(200) == list(range(200))
