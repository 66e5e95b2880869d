"""Our clients on clusters of three brokers of Apache Kafka: what moves, freezes, and is created again."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from ottla.admin import CLIENT_ID, LATEST, Admin, Quota
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.consumer import Consumer, LogTruncated, TopicPartition
from ottla.producer import DeliveryTimeout, Producer, ProducerFenced
from ottla.protocol.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    NoReassignmentInProgress,
)
from peers.three_brokers import ThreeBrokers

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S = 120


def fresh(stem: str) -> str:
    return f"{stem}-{secrets.token_hex(4)}"


async def create(cluster: ThreeBrokers, topic: str, replicas: list[int], **configs: str) -> None:
    """Create a topic of one partition on these brokers, the first of which leads."""
    async with Admin(cluster.bootstrap_servers) as admin:
        names = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.topics.create(topic, assignments={0: replicas}, configs=names)
        await leads(admin, topic, replicas[0])


async def leads(admin: Admin, topic: str, node: int, *, isr: int = 0) -> None:
    """Wait until a broker leads the topic's partition, with at least `isr` replicas in sync."""
    async with asyncio.timeout(BOUND_S):
        while True:
            with contextlib.suppress(NoSuchTopic):  # a broker that has not heard of it yet
                partition = (await admin.topics.describe(topic)).partitions[0]
                if partition.leader == node and len(partition.isr) >= isr:
                    return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def silent_servers(count: int) -> AsyncIterator[list[str]]:
    """Servers that accept connections and never answer."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with AsyncExitStack() as stack:
        servers = [await asyncio.start_server(say_nothing, "127.0.0.1", 0) for _ in range(count)]
        for server in servers:
            await stack.enter_async_context(server)
        yield [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]


async def test_silent_servers_before_three_good_ones_do_not_prevent_the_start(
    three_brokers: ThreeBrokers,
) -> None:
    config = ClientConfig(socket_connection_setup_timeout_ms=600_000)
    async with silent_servers(2) as silent:
        async with Admin([*silent, *three_brokers.bootstrap_servers.split(",")], config) as admin:
            assert [each.id for each in (await admin.brokers.describe()).brokers] == [1, 2, 3]


async def test_records_keep_their_order_when_their_topic_is_created_again(
    three_brokers: ThreeBrokers,
) -> None:
    topic = fresh("recreated")
    numbers = iter(range(10**9))
    stop = asyncio.Event()

    async def produce(producer: Producer) -> None:
        while not stop.is_set():
            for partition in range(3):
                value = b"%d" % next(numbers)
                sent = await producer.send(topic, value, partition=partition)
                sent.add_done_callback(lambda each: each.exception())  # of batches of the old topic
            await asyncio.sleep(0.002)

    async with asyncio.timeout(BOUND_S), Admin(three_brokers.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=3, replication_factor=3)
        async with Producer(three_brokers.bootstrap_servers, batch_size=1, linger_ms=0) as producer:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(produce(producer))
                await admin.topics.delete(topic)
                await created_again(admin, topic)
                await written(admin, topic, 20)
                stop.set()
        read = await values(three_brokers, topic)
    for partition, found in read.items():
        assert found == sorted(found), f"{partition} begins {found[:20]}"


async def created_again(admin: Admin, topic: str) -> None:
    while True:
        try:
            await admin.topics.create(topic, partitions=3, replication_factor=3)
        except KafkaError:  # the old one is not gone yet
            await asyncio.sleep(0.01)
        else:
            return


async def written(admin: Admin, topic: str, count: int) -> None:
    while True:
        ends = await admin.offsets.find({TopicPartition(topic, n): LATEST for n in range(3)})
        if all(end >= count for end in ends.values()):
            return
        await asyncio.sleep(0.1)


async def values(cluster: ThreeBrokers, topic: str) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = defaultdict(list)
    async with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        ends = await consumer.end_offsets()
        while sum(map(len, found.values())) < sum(ends.values()):
            for partition, records in (await consumer.getmany(timeout_ms=1_000)).items():
                found[partition] += [int(record.value or b"") for record in records]
    return found


async def test_a_truncated_log_goes_on_raising_until_a_seek(three_brokers: ThreeBrokers) -> None:
    topic = fresh("truncated")
    unclean = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    await create(three_brokers, topic, [2, 3], **unclean)
    servers = three_brokers.bootstrap_servers
    partition = TopicPartition(topic, 0)
    async with asyncio.timeout(2 * BOUND_S), Admin(servers) as admin:
        async with Producer(servers, acks="all") as producer:
            await leads(admin, topic, 2, isr=2)
            for n in range(100):
                await producer.send_and_wait(topic, b"%d" % n, partition=0)
        await asyncio.to_thread(three_brokers.kill, 3)
        async with Producer(servers, acks=1) as producer:
            await asyncio.gather(*[await producer.send(topic, b"lost", partition=0) for _ in range(100)])
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="none") as consumer:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            for _ in range(200):
                await anext(consumer)
            await asyncio.to_thread(three_brokers.kill, 2)
            await asyncio.to_thread(three_brokers.brokers[3].start)
            await leads(admin, topic, 3)
            async with Producer(servers, acks=1) as producer:
                await asyncio.gather(*[await producer.send(topic, b"new", partition=0) for _ in range(200)])
            for _ in range(3):
                with pytest.raises(LogTruncated) as caught:
                    await anext(consumer)
            assert caught.value.diverges_at == 100
            consumer.seek(partition, 100)
            assert (await anext(consumer)).value == b"new"
        await asyncio.to_thread(three_brokers.brokers[2].start)


async def test_a_coordinator_that_moved_is_asked_at_its_new_port(three_brokers: ThreeBrokers) -> None:
    topic, group = fresh("moved"), fresh("group")
    await create(three_brokers, topic, [1, 2, 3])
    # With a stale address the first attempt alone would last longer than the whole call.
    config = ClientConfig(metadata_max_age_ms=600_000)
    async with asyncio.timeout(BOUND_S), Admin(three_brokers.bootstrap_servers, config) as admin:
        await admin.groups.commit(group, {TopicPartition(topic, 0): 7})
        while (node := await admin.cluster.coordinator(group)) == 1:  # of KRaft it is the only controller
            group = fresh("group")
            await admin.groups.commit(group, {TopicPartition(topic, 0): 7})
        await asyncio.to_thread(three_brokers.move, node)
        await coordinates_again(three_brokers, node, group)
        (found,) = await admin.groups.offsets(group)

    assert found.offset == 7


async def coordinates_again(cluster: ThreeBrokers, node: int, group: str) -> None:
    """Make a broker that was away the coordinator of a group again."""
    async with Admin(cluster.bootstrap_servers) as admin:
        while await admin.cluster.coordinator(group) != node:
            await admin.partitions.elect_leaders()
            await asyncio.sleep(0.2)
            admin.cluster.forget_coordinator(group)


async def test_a_frozen_leader_costs_a_reader_one_timeout(three_brokers: ThreeBrokers) -> None:
    topic = fresh("frozen")
    await create(three_brokers, topic, [2, 3, 1])
    servers = three_brokers.brokers[2].bootstrap_servers
    timeout_s = 20
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(2 * BOUND_S), Producer(three_brokers.bootstrap_servers) as producer:
        async with Consumer(
            topic,
            bootstrap_servers=servers,
            auto_offset_reset="earliest",
            request_timeout_ms=timeout_s * 1_000,
        ) as consumer:
            await producer.send_and_wait(topic, b"before", partition=0)
            assert (await anext(consumer)).value == b"before"
            with three_brokers.frozen(2):
                since_s = loop.time()
                async with Producer(three_brokers.brokers[3].bootstrap_servers) as other:
                    await other.send_and_wait(topic, b"after", partition=0)
                assert (await anext(consumer)).value == b"after"
                took_s = loop.time() - since_s

    assert took_s < 1.7 * timeout_s


async def test_a_record_for_a_deleted_topic_and_a_fenced_producer_name_their_causes(
    three_brokers: ThreeBrokers,
) -> None:
    topic, gone, name = fresh("there"), fresh("gone"), fresh("id")
    servers = three_brokers.bootstrap_servers
    await create(three_brokers, topic, [1, 2, 3])
    await create(three_brokers, gone, [1, 2, 3])
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        async with Producer(servers, delivery_timeout_ms=5_000, request_timeout_ms=4_000) as producer:
            await producer.send_and_wait(gone, b"x")
            await admin.topics.delete(gone)
            with pytest.raises(DeliveryTimeout, match=f"topic '{gone}' does not exist"):
                await producer.send_and_wait(gone, b"y")

        async with Producer(servers, transactional_id=name) as earlier:
            await earlier.begin_transaction()
            await earlier.send_and_wait(topic, b"of the zombie")
            async with Producer(servers, transactional_id=name):
                with pytest.raises(ProducerFenced):
                    await earlier.send_and_wait(topic, b"of the zombie")
                for call in (earlier.commit_transaction, earlier.abort_transaction):
                    with pytest.raises(ProducerFenced):
                        await call()


async def test_partitions_move_to_other_brokers_and_elect_their_preferred_leaders(
    three_brokers: ThreeBrokers,
) -> None:
    topic = fresh("moving")
    await create(three_brokers, topic, [2, 3])
    partition = TopicPartition(topic, 0)
    async with asyncio.timeout(BOUND_S), Admin(three_brokers.bootstrap_servers) as admin:
        await leads(admin, topic, 2, isr=2)
        assert await admin.partitions.elect_leaders([partition]) == {partition: None}
        assert await admin.partitions.reassign({partition: [3, 2]}) == {partition: None}
        await settled(admin)
        assert (await admin.topics.describe(topic)).partitions[0].leader == 2
        assert await admin.partitions.elect_leaders([partition]) == {partition: None}
        await leads(admin, topic, 3)

        assert await admin.partitions.reassign({partition: [1]}) == {partition: None}
        await settled(admin)
        await leads(admin, topic, 1)
        assert (await admin.topics.describe(topic)).partitions[0].replicas == (1,)

        outcomes = await admin.partitions.reassign({partition: None})
        assert isinstance(outcomes[partition], NoReassignmentInProgress)
        outcomes = await admin.partitions.reassign({partition: [7]})
        assert isinstance(outcomes[partition], InvalidReplicaAssignment)


async def settled(admin: Admin) -> None:
    """Wait until nothing moves."""
    while moving := await admin.partitions.reassignments():
        assert all(each.adding or each.removing for each in moving)
        await asyncio.sleep(0.1)


async def test_quotas_are_set_read_and_removed(three_brokers: ThreeBrokers) -> None:
    client = {CLIENT_ID: fresh("shop")}
    async with asyncio.timeout(BOUND_S), Admin(three_brokers.bootstrap_servers) as admin:
        await admin.quotas.alter(client, {"producer_byte_rate": 1024, "request_percentage": 50.5})
        found = [Quota(client, {"producer_byte_rate": 1024.0, "request_percentage": 50.5})]
        await until_quotas(admin, client, found)
        await admin.quotas.alter(client, {"producer_byte_rate": None})
        await until_quotas(admin, client, [Quota(client, {"request_percentage": 50.5})])
        await admin.quotas.alter({CLIENT_ID: None}, {"consumer_byte_rate": 2048})
        everyone = {CLIENT_ID: None}
        await until_quotas(admin, everyone, [Quota(everyone, {"consumer_byte_rate": 2048.0})])
        with pytest.raises(InvalidRequest):
            await admin.quotas.alter(client, {"no_such_key": 1})
        await admin.quotas.alter(everyone, {"consumer_byte_rate": None})


async def until_quotas(admin: Admin, entity: Mapping[str, str | None], expected: list[Quota]) -> None:
    """Wait until every broker knows them: they learn of a change one after the other."""
    while await admin.quotas.describe(entity, strict=True) != expected:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
