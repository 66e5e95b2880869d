"""Replication between broker processes: acks=all, a killed leader, its return, and identical logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ottla.broker.testing import BrokerCluster
from ottla.client.admin import Admin
from ottla.client.cluster import NoSuchTopic, Partition
from ottla.protocol.errors import KafkaError

BOUND_S = 60.0
TOPIC = "orders"
P0 = TopicPartition(TOPIC, 0)

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.ottla_broker(min_insync_replicas=2, auto_leader_rebalance_enable="false"),
]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def described(admin: Admin) -> Partition | None:
    try:
        return (await admin.topics.describe(TOPIC)).partitions[0]
    except (NoSuchTopic, IndexError):
        return None


async def in_sync(admin: Admin, *members: int) -> None:
    """Wait until the ISR of the partition has these members."""

    async def is_so() -> bool:
        found = await described(admin)
        return found is not None and sorted(found.isr) == sorted(members)

    await until(is_so)


async def leader_of(admin: Admin, *, not_node: int = -1) -> int:
    """Wait for a leader other than one broker."""
    found: list[int] = []

    async def is_led() -> bool:
        one = await described(admin)
        found[:] = [one.leader] if one is not None and one.leader not in (None, -1, not_node) else []
        return bool(found)

    await until(is_led)
    return found[0]


async def produced(servers: str, values: range) -> None:
    """Write records one after the other with acks=all, several in flight; all are acknowledged then."""
    async with AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, request_timeout_ms=10_000
    ) as producer:
        sent = [await producer.send(TOPIC, b"%d" % one, partition=0) for one in values]
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(*sent)


async def consumed(servers: str, count: int) -> list[int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None)
    async with consumer, asyncio.timeout(BOUND_S):
        consumer.assign([P0])
        return [int((await consumer.getone()).value or b"") for _ in range(count)]


def log_of(cluster: BrokerCluster, node: int) -> bytes:
    directory = Path(cluster.brokers[node].data_dir) / f"{TOPIC}-0"
    return b"".join(one.read_bytes() for one in sorted(directory.glob("*.log")))


async def test_records_survive_the_leader_and_it_comes_back_with_the_same_log(
    ottla_cluster: BrokerCluster,
) -> None:
    servers = ottla_cluster.bootstrap_servers
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=1, replication_factor=3)
        await in_sync(admin, 1, 2, 3)
        await produced(servers, range(1_000))
        first = await leader_of(admin)

        ottla_cluster.brokers[first].kill()
        second = await leader_of(admin, not_node=first)
        assert await consumed(servers, 1_000) == list(range(1_000))
        await produced(servers, range(1_000, 2_000))

        ottla_cluster.brokers[first].restart()
        await in_sync(admin, 1, 2, 3)
        assert await leader_of(admin) == second
        assert await consumed(servers, 2_000) == list(range(2_000))

    async def are_alike() -> bool:
        return len({log_of(ottla_cluster, node) for node in (1, 2, 3)}) == 1

    await until(are_alike)
    assert log_of(ottla_cluster, first)


async def test_a_group_keeps_its_offsets_when_its_coordinator_is_killed(ottla_cluster: BrokerCluster) -> None:
    servers, group = ottla_cluster.bootstrap_servers, "readers"
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=1, replication_factor=3)
        await in_sync(admin, 1, 2, 3)
        await admin.groups.commit(group, {P0: 42})
        before = await admin.cluster.coordinator(group)

        ottla_cluster.brokers[before].kill()

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
    min_insync_replicas=2, replica_lag_time_max_ms=2_000, zookeeper_session_timeout_ms=60_000
)
async def test_the_isr_shrinks_without_a_follower_that_sleeps_and_grows_when_it_wakes(
    ottla_cluster: BrokerCluster,
) -> None:
    servers = ottla_cluster.bootstrap_servers
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=1, replication_factor=3)
        await in_sync(admin, 1, 2, 3)
        leader, controller = await leader_of(admin), await controller_of(admin)
        sleeper = next(node for node in (1, 2, 3) if node not in (leader, controller))
        await produced(servers, range(100))

        ottla_cluster.brokers[sleeper].pause()
        try:
            others = {one.bootstrap_servers for node, one in ottla_cluster.brokers.items() if node != sleeper}
            async with Admin(",".join(others)) as awake:
                await produced(",".join(others), range(100, 200))
                await in_sync(awake, *({1, 2, 3} - {sleeper}))
        finally:
            ottla_cluster.brokers[sleeper].resume()

        await in_sync(admin, 1, 2, 3)
        assert await consumed(servers, 200) == list(range(200))


async def controller_of(admin: Admin) -> int:
    return next(one.id for one in (await admin.brokers.describe()).brokers if one.is_controller)
