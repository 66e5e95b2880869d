"""Reassignment, deletion, preferred election and controlled shutdown between broker processes, under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition

from ottla.broker.testing import BrokerCluster
from ottla.client.admin import Admin
from ottla.client.cluster import NoSuchTopic, Partition
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.protocol.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    KafkaError,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition

BOUND_S = 90.0
TOPIC = "orders"
P0 = TopicPartition(TOPIC, 0)
P0_OF_AIOKAFKA = AioPartition(TOPIC, 0)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.ottla_broker(auto_leader_rebalance_enable="false", replica_lag_time_max_ms="3000"),
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
    async def is_so() -> bool:
        found = await described(admin)
        return found is not None and sorted(found.isr) == sorted(members)

    await until(is_so)


async def shows(admin: Admin, replicas: tuple[int, ...]) -> bool:
    """Tell whether the partition's metadata has these replicas."""
    found = await described(admin)
    return found is not None and tuple(found.replicas) == replicas


async def moved(admin: Admin, *replicas: int) -> None:
    """Wait until nothing moves, and the partition has these replicas, all in sync."""

    async def is_so() -> bool:
        try:
            moving = await admin.partitions.reassignments()
        except (ClientError, KafkaError):
            return False
        found = await described(admin)
        return (
            not moving
            and found is not None
            and tuple(found.replicas) == replicas
            and sorted(found.isr) == sorted(replicas)
        )

    await until(is_so)


class Load:
    """Records that are written with acks=all, and those of them that were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []

    async def write(self, producer: AIOKafkaProducer) -> None:
        number = 0
        while True:
            await producer.send_and_wait(TOPIC, b"%d" % number, partition=0)
            self.acknowledged.append(number)
            number += 1


@asynccontextmanager
async def under_load(cluster: BrokerCluster) -> AsyncIterator[Load]:
    """Write one record after the other meanwhile; afterwards every acknowledged one is read, in order."""
    load, servers = Load(), cluster.bootstrap_servers
    async with AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, retry_backoff_ms=20
    ) as producer:
        writing = asyncio.create_task(load.write(producer))
        try:
            yield load
            before = len(load.acknowledged)
            await until(lambda: _is(writing.done() or len(load.acknowledged) > before))
        finally:
            writing.cancel()
            [end] = await asyncio.gather(writing, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), end
    count = len(load.acknowledged)
    assert (await consumed(servers, count))[:count] == load.acknowledged


async def _is(value: bool) -> bool:
    return value


async def consumed(servers: str, count: int) -> list[int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None)
    async with consumer, asyncio.timeout(BOUND_S):
        consumer.assign([P0_OF_AIOKAFKA])
        return [int((await consumer.getone()).value or b"") for _ in range(count)]


def has_log(cluster: BrokerCluster, node: int) -> bool:
    return (Path(cluster.brokers[node].data_dir) / f"{TOPIC}-0").exists()


async def controller_of(admin: Admin) -> int:
    found: list[int] = []

    async def is_there() -> bool:
        found[:] = [one.id for one in (await admin.brokers.describe()).brokers if one.is_controller]
        return bool(found)

    await until(is_there)
    return found[0]


async def with_topic(admin: Admin, *replicas: int) -> None:
    await admin.topics.create(TOPIC, assignments={0: list(replicas)})
    await in_sync(admin, *replicas)


async def test_a_partition_moves_under_load_and_the_old_replicas_are_deleted(
    ottla_cluster: BrokerCluster,
) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await with_topic(admin, 1)
        async with under_load(ottla_cluster):
            for target in ((2, 3), (3, 1), (2,)):
                assert await admin.partitions.reassign({P0: target}) == {P0: None}
                await moved(admin, *target)
                hosts = [node in target for node in (1, 2, 3)]
                await until(partial(hosted, ottla_cluster, hosts))


async def hosted(cluster: BrokerCluster, hosts: list[bool]) -> bool:
    return [has_log(cluster, node) for node in (1, 2, 3)] == hosts


async def test_a_move_goes_on_when_the_controller_is_killed_in_the_middle(
    ottla_cluster: BrokerCluster,
) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        controller = await controller_of(admin)
        old, new = (node for node in (1, 2, 3) if node != controller)
        await with_topic(admin, old)
        async with under_load(ottla_cluster) as load:
            await until(lambda: _is(len(load.acknowledged) > 200))
            ottla_cluster.brokers[new].pause()
            assert await admin.partitions.reassign({P0: (new,)}) == {P0: None}

            ottla_cluster.brokers[controller].kill()
            ottla_cluster.brokers[new].resume()

            await moved(admin, new)
        assert not has_log(ottla_cluster, old)


async def error_of_asking(port: int) -> int:
    """Ask one broker for the end of the partition, as a client does that takes it for the leader."""
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=TOPIC, partitions=[ListOffsetsPartition(timestamp=-1)])]
    )
    async with Connection(Address("127.0.0.1", port), ClientConfig()) as connection:
        response = await connection.send(request, ListOffsetsResponse)
    return response.topics[0].partitions[0].error_code


async def test_a_leader_that_slept_while_its_partition_moved_away_does_not_lead_any_more(
    ottla_cluster: BrokerCluster,
) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        controller = await controller_of(admin)
        sleeper, other = (node for node in (1, 2, 3) if node != controller)
        await with_topic(admin, sleeper, controller)
        broker = ottla_cluster.brokers[sleeper]
        assert await error_of_asking(broker.port) == ErrorCode.NONE
        broker.pause()
        await in_sync(admin, controller)
        assert await admin.partitions.reassign({P0: (controller, other)}) == {P0: None}
        await moved(admin, controller, other)

        broker.resume()

        async def does_not_lead() -> bool:
            return await error_of_asking(broker.port) == ErrorCode.NOT_LEADER_OR_FOLLOWER

        await until(does_not_lead)


async def test_a_move_is_listed_and_cancelled(ottla_cluster: BrokerCluster) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        controller = await controller_of(admin)
        old, new = (node for node in (1, 2, 3) if node != controller)
        await with_topic(admin, old)
        async with under_load(ottla_cluster):
            ottla_cluster.brokers[new].pause()
            assert await admin.partitions.reassign({P0: (new,)}) == {P0: None}

            [moving] = await admin.partitions.reassignments()
            assert (moving.replicas, moving.adding, moving.removing) == ((new, old), (new,), (old,))
            await until(partial(shows, admin, (new, old)))
            with pytest.raises(ReassignmentInProgress):
                await admin.topics.add_partitions(TOPIC, 2)
            assert await admin.partitions.reassign({P0: None}) == {P0: None}
            ottla_cluster.brokers[new].resume()

            await moved(admin, old)
        await until(lambda: _is(not has_log(ottla_cluster, new)))
        [again] = (await admin.partitions.reassign({P0: None})).values()
        assert isinstance(again, NoReassignmentInProgress)


async def test_bad_requests_have_kafkas_errors(ottla_cluster: BrokerCluster) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await with_topic(admin, 1)
        unknown = TopicPartition("never-was", 0)

        for target in ([], [1, 1], [9], [-1]):
            [error] = (await admin.partitions.reassign({P0: target})).values()
            assert isinstance(error, InvalidReplicaAssignment), (target, error)
        assert isinstance((await admin.partitions.reassign({unknown: [1]}))[unknown], UnknownTopicOrPartition)
        assert await admin.partitions.reassignments() == []


async def test_a_broker_stops_under_load_and_its_leadership_returns_by_a_preferred_election(
    ottla_cluster: BrokerCluster,
) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await with_topic(admin, 1, 2, 3)
        async with under_load(ottla_cluster):
            await asyncio.to_thread(ottla_cluster.brokers[1].stop)
            found = await described(admin)
            assert found is not None
            assert (found.leader in (2, 3), sorted(found.isr)) == (True, [2, 3])

            await asyncio.to_thread(ottla_cluster.brokers[1].start)
            await in_sync(admin, 1, 2, 3)
            assert await admin.partitions.elect_leaders([P0]) == {P0: None}

            await until(partial(is_led_by, admin, 1))


async def is_led_by(admin: Admin, node: int) -> bool:
    found = await described(admin)
    return found is not None and found.leader == node


@pytest.mark.ottla_broker(
    auto_leader_rebalance_enable="true",
    leader_imbalance_check_interval_seconds=1,
    leader_imbalance_per_broker_percentage=0,
)
async def test_the_balance_gives_a_broker_its_leaderships_back(ottla_cluster: BrokerCluster) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await with_topic(admin, 1, 2, 3)
        await asyncio.to_thread(ottla_cluster.brokers[1].stop)
        assert not await is_led_by(admin, 1)

        await asyncio.to_thread(ottla_cluster.brokers[1].start)

        await until(partial(is_led_by, admin, 1))


async def test_a_topic_with_a_replica_on_a_dead_broker_is_deleted_when_that_returns(
    ottla_cluster: BrokerCluster,
) -> None:
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        controller = await controller_of(admin)
        dead = next(node for node in (1, 2, 3) if node != controller)
        await with_topic(admin, 1, 2, 3)
        ottla_cluster.brokers[dead].kill()
        await in_sync(admin, *(node for node in (1, 2, 3) if node != dead))

        deleting = asyncio.create_task(admin.topics.delete(TOPIC))
        await until(lambda: _is(not has_log(ottla_cluster, controller)))
        assert has_log(ottla_cluster, dead)
        await asyncio.to_thread(ottla_cluster.brokers[dead].start)

        await until(lambda: _is(not has_log(ottla_cluster, dead)))
        await asyncio.gather(deleting, return_exceptions=True)
        await with_topic(admin, 1, 2, 3)
