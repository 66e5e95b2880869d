"""Reassignment, deletion, preferred election and controlled shutdown between broker processes, under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer

from ottla.broker.testing import BrokerCluster
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
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition
from peers.one_partition import OnePartition, one_partition, until

CLUSTER_SETTINGS = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "3000"}

pytestmark = pytest.mark.timeout(300)


async def shows(partition: OnePartition, replicas: tuple[int, ...]) -> bool:
    """Tell whether the partition's metadata has these replicas."""
    found = await partition.described()
    return found is not None and tuple(found.replicas) == replicas


async def moved(partition: OnePartition, *replicas: int) -> None:
    """Wait until nothing moves, and the partition has these replicas, all in sync."""

    async def is_so() -> bool:
        try:
            moving = await partition.admin.partitions.reassignments()
        except (ClientError, KafkaError):
            return False
        found = await partition.described()
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

    async def write(self, producer: AIOKafkaProducer, topic: str) -> None:
        number = 0
        while True:
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
            self.acknowledged.append(number)
            number += 1


@asynccontextmanager
async def under_load(partition: OnePartition) -> AsyncIterator[Load]:
    """Write one record after the other meanwhile; afterwards every acknowledged one is read, in order."""
    load = Load()
    async with AIOKafkaProducer(
        bootstrap_servers=partition.servers, acks="all", enable_idempotence=True, retry_backoff_ms=20
    ) as producer:
        writing = asyncio.create_task(load.write(producer, partition.topic))
        try:
            yield load
            before = len(load.acknowledged)
            await until(lambda: _is(writing.done() or len(load.acknowledged) > before))
        finally:
            writing.cancel()
            [end] = await asyncio.gather(writing, return_exceptions=True)
        assert isinstance(end, asyncio.CancelledError), end
    count = len(load.acknowledged)
    assert (await partition.consume(count))[:count] == load.acknowledged


async def _is(value: bool) -> bool:
    return value


async def test_a_partition_moves_under_load_and_the_old_replicas_are_deleted(orders: OnePartition) -> None:
    await orders.create(1)
    async with under_load(orders):
        for target in ((2, 3), (3, 1), (2,)):
            assert await orders.admin.partitions.reassign({orders.place: target}) == {orders.place: None}
            await moved(orders, *target)
            hosts = [node in target for node in (1, 2, 3)]
            await until(partial(hosted, orders, hosts))


async def hosted(partition: OnePartition, hosts: list[bool]) -> bool:
    return [partition.has_log(node) for node in (1, 2, 3)] == hosts


async def test_a_move_goes_on_when_the_controller_is_killed_in_the_middle(orders: OnePartition) -> None:
    brokers, controller = orders.cluster.brokers, await orders.controller()
    old, new = (node for node in (1, 2, 3) if node != controller)
    await orders.create(old)
    async with under_load(orders) as load:
        await until(lambda: _is(len(load.acknowledged) > 200))
        brokers[new].pause()
        assert await orders.admin.partitions.reassign({orders.place: (new,)}) == {orders.place: None}

        brokers[controller].kill()
        brokers[new].resume()

        await moved(orders, new)
    assert not orders.has_log(old)


async def error_of_asking(port: int, topic: str) -> int:
    """Ask one broker for the end of the partition, as a client does that takes it for the leader."""
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(timestamp=-1)])]
    )
    async with Connection(Address("127.0.0.1", port), ClientConfig()) as connection:
        response = await connection.send(request, ListOffsetsResponse)
    return response.topics[0].partitions[0].error_code


async def test_a_leader_that_slept_while_its_partition_moved_away_does_not_lead_any_more(
    orders: OnePartition,
) -> None:
    controller = await orders.controller()
    sleeper, other = (node for node in (1, 2, 3) if node != controller)
    await orders.create(sleeper, controller)
    broker = orders.cluster.brokers[sleeper]
    assert await error_of_asking(broker.port, orders.topic) == ErrorCode.NONE
    broker.pause()
    await orders.in_sync(controller)
    target = (controller, other)
    assert await orders.admin.partitions.reassign({orders.place: target}) == {orders.place: None}
    await moved(orders, *target)

    broker.resume()

    async def does_not_lead() -> bool:
        return await error_of_asking(broker.port, orders.topic) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    await until(does_not_lead)


async def test_a_move_is_listed_and_cancelled(orders: OnePartition) -> None:
    partitions, brokers = orders.admin.partitions, orders.cluster.brokers
    controller = await orders.controller()
    old, new = (node for node in (1, 2, 3) if node != controller)
    await orders.create(old)
    async with under_load(orders):
        brokers[new].pause()
        assert await partitions.reassign({orders.place: (new,)}) == {orders.place: None}

        [moving] = await partitions.reassignments()
        assert (moving.replicas, moving.adding, moving.removing) == ((new, old), (new,), (old,))
        await until(partial(shows, orders, (new, old)))
        with pytest.raises(ReassignmentInProgress):
            await orders.admin.topics.add_partitions(orders.topic, 2)
        assert await partitions.reassign({orders.place: None}) == {orders.place: None}
        brokers[new].resume()

        await moved(orders, old)
    await until(lambda: _is(not orders.has_log(new)))
    [again] = (await partitions.reassign({orders.place: None})).values()
    assert isinstance(again, NoReassignmentInProgress)


async def test_bad_requests_have_kafkas_errors(orders: OnePartition) -> None:
    partitions = orders.admin.partitions
    await orders.create(1)
    unknown = TopicPartition("never-was", 0)

    for target in ([], [1, 1], [9], [-1]):
        [error] = (await partitions.reassign({orders.place: target})).values()
        assert isinstance(error, InvalidReplicaAssignment), (target, error)
    assert isinstance((await partitions.reassign({unknown: [1]}))[unknown], UnknownTopicOrPartition)
    assert await partitions.reassignments() == []


async def test_a_broker_stops_under_load_and_its_leadership_returns_by_a_preferred_election(
    orders: OnePartition,
) -> None:
    broker = orders.cluster.brokers[1]
    await orders.create(1, 2, 3)
    async with under_load(orders):
        await asyncio.to_thread(broker.stop)
        await orders.in_sync(2, 3)
        await orders.leader(not_node=1)

        await asyncio.to_thread(broker.start)
        await orders.in_sync(1, 2, 3)
        assert await orders.admin.partitions.elect_leaders([orders.place]) == {orders.place: None}

        await until(partial(orders.is_led_by, 1))


@pytest.mark.ottla_broker(
    auto_leader_rebalance_enable="true",
    leader_imbalance_check_interval_seconds=1,
    leader_imbalance_per_broker_percentage=0,
    replica_lag_time_max_ms=3_000,
)
async def test_the_balance_gives_a_broker_its_leaderships_back(ottla_cluster: BrokerCluster) -> None:
    async with one_partition(ottla_cluster) as orders:
        await orders.create(1, 2, 3)
        await asyncio.to_thread(ottla_cluster.brokers[1].stop)
        # The other brokers may hear of the new leader after the old one has ended.
        await orders.leader(not_node=1)

        await asyncio.to_thread(ottla_cluster.brokers[1].start)

        await until(partial(orders.is_led_by, 1))


async def test_a_topic_with_a_replica_on_a_dead_broker_is_deleted_when_that_returns(
    orders: OnePartition,
) -> None:
    brokers, controller = orders.cluster.brokers, await orders.controller()
    dead = next(node for node in (1, 2, 3) if node != controller)
    await orders.create(1, 2, 3)
    brokers[dead].kill()
    await orders.in_sync(*(node for node in (1, 2, 3) if node != dead))

    deleting = asyncio.create_task(orders.admin.topics.delete(orders.topic))
    await until(lambda: _is(not orders.has_log(controller)))
    assert orders.has_log(dead)
    await asyncio.to_thread(brokers[dead].start)

    await until(lambda: _is(not orders.has_log(dead)))
    await asyncio.gather(deleting, return_exceptions=True)
    await orders.create(1, 2, 3)
