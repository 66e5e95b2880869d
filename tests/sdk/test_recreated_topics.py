"""Topics that are deleted and created again under a reader, and the offsets of groups that read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from kazoo.client import KazooClient

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.client.errors import ClientError
from ottla.consumer import Consumer, NotAssigned, TopicPartition
from ottla.producer import Producer
from ottla.protocol.errors import KafkaError

BOUND_S = 90.0


class Servers(Protocol):
    """A cluster under test."""

    bootstrap_servers: str


async def write(servers: str, topic: str, prefix: str, count: int) -> list[bytes]:
    values = [b"%s-%d" % (prefix.encode(), number) for number in range(count)]
    async with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            await producer.send(topic, value, partition=0)
        await producer.flush()
    return values


async def create_again(
    admin: Admin, topic: str, assignments: Mapping[int, Sequence[int]] | None = None
) -> None:
    await admin.topics.delete(topic)
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                await admin.topics.create(topic, partitions=1, replication_factor=1, assignments=assignments)
            except KafkaError:  # the deletion goes on
                await asyncio.sleep(0.02)
            else:
                return


async def take(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(BOUND_S):
        return [(await anext(consumer)).value or b"" for _ in range(count)]


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize("count", [15, 400])
async def test_a_reader_that_did_not_notice_reads_all_of_the_new_topic(
    cluster: Servers, admin: Admin, fresh: Callable[[str], str], group: bool, count: int
) -> None:
    topic, group_id = fresh("again"), fresh("again") if group else None
    partition = TopicPartition(topic, 0)
    await admin.topics.create(topic, partitions=1, replication_factor=1)
    old = await write(cluster.bootstrap_servers, topic, "old", 100)

    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
    ) as consumer:
        assert await take(consumer, 100) == old
        consumer.pause(partition)  # no fetch is at the broker, which would be answered as the topic goes
        await asyncio.sleep(1)
        await create_again(admin, topic)
        new = await write(cluster.bootstrap_servers, topic, "new", count)
        consumer.resume(partition)
        assert await take(consumer, count) == new
        if group:
            await consumer.getmany()
            await consumer.commit()
            assert await consumer.committed(partition) == count


@pytest.mark.slow
async def test_a_group_on_three_brokers_reads_each_new_topic_whole(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, {"offsets.topic.num.partitions": "4"}) as brokers:
        async with Admin(brokers.bootstrap_servers) as admin:
            await admin.topics.create("again", partitions=1, replication_factor=3)
            async with Consumer(
                "again",
                bootstrap_servers=brokers.bootstrap_servers,
                group_id="readers",
                auto_offset_reset="earliest",
                auto_commit_interval_ms=50,
            ) as consumer:
                for node, count in ((1, 100), (2, 15), (3, 400)):
                    values = await write(brokers.bootstrap_servers, "again", f"{count}", count)
                    assert await take(consumer, count) == values
                    await consumer.commit()
                    assert await consumer.committed(("again", 0)) == count
                    await _create_again_while_a_broker_is_down(brokers, admin, consumer, node)


async def _create_again_while_a_broker_is_down(
    brokers: BrokerCluster, admin: Admin, consumer: Consumer, node: int
) -> None:
    """Delete the topic while a replica is dead, and create it while the reader fetches nothing."""
    await asyncio.to_thread(brokers.brokers[node].kill)
    with suppress(KafkaError, ClientError, TimeoutError):  # a deletion waits for all replicas
        async with asyncio.timeout(10):  # the session of a controller that died ends after 4 s
            await admin.topics.delete("again")
    with suppress(NotAssigned):
        consumer.pause(("again", 0))
    await asyncio.to_thread(brokers.brokers[node].start)
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                await admin.topics.create("again", partitions=1, replication_factor=3)
            except (KafkaError, ClientError):
                await asyncio.sleep(0.1)
            else:
                break
        while ("again", 0) not in consumer.assignment():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    consumer.resume(("again", 0))


async def read_as_group(servers: str, topic: str, count: int) -> list[bytes]:
    """Read so many records as a member of the group, commit, and leave it."""
    async with Consumer(
        topic, bootstrap_servers=servers, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:
        values = await take(consumer, count)
        await consumer.commit()
        return values


def delete_in_zookeeper(connect: str, topic: str) -> None:
    """Delete the topic as a controller ends a deletion, for which no broker is up."""
    client = KazooClient(hosts=connect)
    client.start(timeout=30)
    try:
        for parent in ("/brokers/topics", "/config/topics"):
            client.delete(f"{parent}/{topic}", recursive=True)
    finally:
        client.stop()
        client.close()


async def test_a_group_reads_all_of_a_topic_deleted_while_its_only_broker_was_down(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, {"offsets.topic.num.partitions": "1"}, size=1) as brokers:
        servers, broker = brokers.bootstrap_servers, brokers.brokers[1]
        async with Admin(servers) as admin:
            await admin.topics.create("again", partitions=1, replication_factor=1)
            old = await write(servers, "again", "old", 100)
            assert await read_as_group(servers, "again", 100) == old
            await asyncio.to_thread(broker.stop)
            await asyncio.to_thread(delete_in_zookeeper, brokers.zookeeper_connect, "again")
            await asyncio.to_thread(broker.start)
            await admin.topics.create("again", partitions=1, replication_factor=1)
            new = await write(servers, "again", "new", 400)

            assert await admin.groups.committed("readers") == {}
            assert await read_as_group(servers, "again", 400) == new


async def test_a_group_reads_all_of_a_topic_made_again_while_its_coordinator_was_down(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": "1", "offsets.topic.replication.factor": "1"}
    with BrokerCluster(tmp_path, settings) as brokers:
        servers = brokers.bootstrap_servers
        async with Admin(servers) as admin:
            await admin.topics.create("first", partitions=1, replication_factor=1)
            await write(servers, "first", "first", 1)
            await read_as_group(servers, "first", 1)
            coordinator = (await admin.topics.describe("__consumer_offsets")).partitions[0].leader
            others = [node for node in brokers.brokers if node != coordinator]
            await admin.topics.create("again", assignments={0: others})
            old = await write(servers, "again", "old", 100)
            assert await read_as_group(servers, "again", 100) == old
            await asyncio.to_thread(brokers.brokers[coordinator].kill)
            await create_again(admin, "again", assignments={0: others})
            new = await write(servers, "again", "new", 400)
            await asyncio.to_thread(brokers.brokers[coordinator].start)
            await asyncio.to_thread(brokers.wait_until_complete)

            assert await admin.groups.committed("readers", [TopicPartition("again", 0)]) == {}
            assert await read_as_group(servers, "again", 400) == new
