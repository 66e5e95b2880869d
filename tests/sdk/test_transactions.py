"""Transactions of our producer, as consumers of several makes see them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer

from ottla.admin import Admin
from ottla.client.cluster import Cluster as Client
from ottla.consumer import Consumer
from ottla.producer import (
    Producer,
    TransactionError,
    TransactionFailed,
    end_prepared,
)
from ottla.producer import ProducerFenced as Fenced
from ottla.protocol.errors import (
    IllegalGeneration,
    InvalidTxnState,
    ProducerFenced,
    StaleMemberEpoch,
    TransactionalIdAuthorizationFailed,
)
from ottla.protocol.topics import TopicPartition
from peers.denied_transactions import denied_transactions

if TYPE_CHECKING:
    from sdk.conftest import Cluster

WORKER = Path(__file__).with_name("transactional_worker.py")


@pytest.fixture
async def topic(cluster: Cluster, admin: Admin, fresh: Callable[[str], str]) -> str:
    name = fresh("txn")
    await admin.topics.create(name, partitions=3, replication_factor=1)
    return name


async def committed(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    """Read `count` committed records, and see that no more come."""
    found: list[bytes | None] = []
    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=20_000)).values():
                found += [record.value for record in records]
        assert not await consumer.getmany(timeout_ms=500)
    return sorted(found, key=lambda value: value or b"")


async def test_a_cluster_that_denies_transactions_refuses_at_the_start() -> None:
    async with denied_transactions() as servers:
        with pytest.raises(TransactionalIdAuthorizationFailed):
            async with Producer(servers, transactional_id="id"):
                pytest.fail("it was let in")


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_prepared_transaction_is_ended_by_whoever_has_it(
    cluster: Cluster, topic: str, fresh: Callable[[str], str], *, is_committed: bool
) -> None:
    name = fresh("id")
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"prepared", partition=0)
        prepared = await producer.prepare_transaction()
    assert await committed(cluster, topic, 0) == []

    async with Client(cluster.bootstrap_servers) as client:
        for _ in range(2):
            await end_prepared(client, prepared, committed=is_committed)
        with pytest.raises(InvalidTxnState):
            await end_prepared(client, prepared, committed=not is_committed)
    assert await committed(cluster, topic, is_committed) == [b"prepared"] * is_committed


async def test_a_prepared_transaction_is_aborted_by_the_next_of_its_name(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    name = fresh("id")
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"prepared", partition=0)
        prepared = await producer.prepare_transaction()
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        async with producer.transaction():
            await producer.send(topic, b"next", partition=0)

    async with Client(cluster.bootstrap_servers) as client:
        with pytest.raises(ProducerFenced):
            await end_prepared(client, prepared, committed=True)
    assert await committed(cluster, topic, 1) == [b"next"]


async def test_what_is_committed_is_seen_and_what_is_aborted_is_not(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        async with producer.transaction():
            for partition in range(3):
                await producer.send(topic, b"kept %d" % partition, partition=partition)
        with pytest.raises(RuntimeError, match="no"):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"dropped", partition=0)
                raise RuntimeError("no")
        async with producer.transaction():
            await producer.send_many(topic, [b"more %d" % number for number in range(5)])
        assert (producer.metrics.txn_commit_total, producer.metrics.txn_abort_total) == (2, 1)

    expected = sorted([b"kept %d" % n for n in range(3)] + [b"more %d" % n for n in range(5)])
    assert await committed(cluster, topic, 8) == expected


async def test_aiokafka_sees_the_same(cluster: Cluster, topic: str, fresh: Callable[[str], str]) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"dropped", partition=1)
        await producer.abort_transaction()
        await producer.begin_transaction()
        await producer.send(topic, b"kept", partition=1)
        await producer.commit_transaction()

    consumer = AIOKafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 1)])
        record = await asyncio.wait_for(consumer.getone(), 20)
    finally:
        await consumer.stop()
    assert record.value == b"kept"


async def test_a_later_producer_of_the_name_fences_the_earlier_one(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    name = fresh("id")
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as earlier:
        await earlier.begin_transaction()
        await earlier.send_and_wait(topic, b"of the zombie", partition=0)
        async with Producer(cluster.bootstrap_servers, transactional_id=name) as later:
            async with later.transaction():
                await later.send(topic, b"of the heir", partition=0)
        with pytest.raises(Fenced):
            await earlier.send_and_wait(topic, b"of the zombie", partition=0)
        for call in (earlier.commit_transaction, earlier.abort_transaction, earlier.begin_transaction):
            with pytest.raises(Fenced, match="another one uses the transactional id"):
                await call()

    assert await committed(cluster, topic, 1) == [b"of the heir"]


async def test_a_record_that_is_lost_leaves_only_the_abort(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic = fresh("small")
    await admin.topics.create(
        topic, partitions=1, replication_factor=1, configs={"max.message.bytes": "1000"}
    )
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        await producer.begin_transaction()
        await producer.send(topic, b"x" * 5_000)
        with pytest.raises(TransactionFailed):
            await producer.commit_transaction()
        with pytest.raises(TransactionFailed):
            await producer.send(topic, b"small")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"small")

    assert await committed(cluster, topic, 1) == [b"small"]


async def test_calls_that_do_not_fit_say_what_to_do(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        with pytest.raises(TransactionError, match="outside of a transaction"):
            await producer.send(topic, b"x")
        with pytest.raises(TransactionError, match="outside of a transaction"):
            await producer.commit_transaction()
        await producer.begin_transaction()
        with pytest.raises(TransactionError, match="cannot begin"):
            await producer.begin_transaction()
    async with Producer(cluster.bootstrap_servers) as plain:
        with pytest.raises(TransactionError, match="transactional_id"):
            await plain.begin_transaction()


async def test_a_record_that_comes_while_its_transaction_commits_is_refused(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id"), linger_ms=100) as producer:
        for number in range(5):
            await producer.begin_transaction()
            await producer.send(topic, b"%d" % number)
            committing = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(0)  # the commit has begun
            with pytest.raises(TransactionError, match="cannot send records"):
                await producer.send(topic, b"too late")
            await committing

    assert await committed(cluster, topic, 5) == [b"%d" % number for number in range(5)]


async def test_a_record_that_never_finds_its_place_leaves_only_the_abort(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    settings: dict[str, Any] = {"transactional_id": fresh("id"), "max_block_ms": 500}
    async with Producer(cluster.bootstrap_servers, **settings) as producer:
        await producer.begin_transaction()
        lost = producer.send_nowait(topic, b"nowhere", partition=77)
        with pytest.raises(TransactionFailed, match="partitions 0 to 2"):
            await producer.commit_transaction()
        with pytest.raises(ValueError, match="77"):
            await lost
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"kept")

    assert await committed(cluster, topic, 1) == [b"kept"]


async def test_a_block_that_is_cancelled_is_aborted(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"dropped")
                    await asyncio.Event().wait()
        async with producer.transaction():
            await producer.send(topic, b"kept")

    assert await committed(cluster, topic, 1) == [b"kept"]


async def test_a_transaction_whose_time_is_over_is_aborted_by_the_coordinator(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    name = fresh("id")
    async with (
        Consumer(bootstrap_servers=cluster.bootstrap_servers, isolation_level="read_committed") as reader,
        Producer(cluster.bootstrap_servers, transactional_id=name, transaction_timeout_ms=1_000) as producer,
    ):
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped", partition=0)
        partition = TopicPartition(topic, 0)
        async with asyncio.timeout(
            30
        ):  # the marker of the abort moves where readers of committed records end
            while (await reader.end_offsets([partition]))[partition] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
        with pytest.raises(ProducerFenced, match="close this producer"):
            await producer.begin_transaction()
    async with Producer(cluster.bootstrap_servers, transactional_id=name) as producer:
        async with producer.transaction():
            await producer.send(topic, b"kept")

    assert await committed(cluster, topic, 1) == [b"kept"]


@pytest.mark.timeout(180)
async def test_a_transaction_that_took_too_long_fences_its_producer(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    """A coordinator ends it and takes the epoch away: the producer is fenced, whatever it calls."""
    name = fresh("id")
    servers = cluster.bootstrap_servers
    async with Producer(servers, transactional_id=name, transaction_timeout_ms=1_000) as producer:
        await producer.begin_transaction()
        with pytest.raises(ProducerFenced):
            async with asyncio.timeout(120):
                while True:  # coordinators look for old transactions every ten seconds
                    await producer.send_and_wait(topic, b"dropped", partition=0)
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
        with pytest.raises(ProducerFenced):
            await producer.abort_transaction()

    async with Producer(servers, transactional_id=name) as next_one, next_one.transaction():
        await next_one.send(topic, b"kept", partition=0)
    assert await committed(cluster, topic, 1) == [b"kept"]


async def test_transactions_follow_each_other_without_long_waits(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        async with asyncio.timeout(60):
            for number in range(50):
                async with producer.transaction():
                    await producer.send(topic, b"%02d" % number)

    assert await committed(cluster, topic, 50) == [b"%02d" % number for number in range(50)]


async def test_confluents_consumer_sees_what_is_committed(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send(topic, b"%d" % number, partition=0)
            await (producer.commit_transaction() if number % 2 else producer.abort_transaction())

    def read() -> list[bytes | None]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": fresh("confluent"),
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            found: list[bytes | None] = []
            while (message := consumer.poll(20)) is not None and message.error() is None:
                found.append(message.value())
            return found
        finally:
            consumer.close()

    assert await asyncio.to_thread(read) == [b"1", b"3", b"5"]


async def test_offsets_are_committed_with_the_transaction_or_not_at_all(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    group, partition = fresh("group"), TopicPartition(topic, 0)
    async with Admin(cluster.bootstrap_servers) as admin:
        async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
            await producer.begin_transaction()
            await producer.send_offsets({partition: 7}, group)
            await producer.abort_transaction()
            assert not await admin.groups.offsets(group, [partition])
            async with producer.transaction():
                await producer.send_offsets({partition: 9}, group)
        # The coordinator decides at once and tells the group's partition right afterwards.
        async with asyncio.timeout(60):
            while not (found := await admin.groups.offsets(group, [partition])):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert [each.offset for each in found] == [9]


@pytest.mark.parametrize("protocol", ["range", "cooperative-sticky", "consumer"])
async def test_offsets_of_records_whose_partitions_were_taken_away_are_refused(
    cluster: Cluster, topic: str, fresh: Callable[[str], str], protocol: str
) -> None:
    """Also where the member has the partitions again: it reads their records again."""
    if protocol == "consumer" and cluster.kind != "ottla":
        pytest.skip("Kafka 3.9 has it in preview only")
    servers, group = cluster.bootstrap_servers, fresh("group")
    async with Producer(servers) as plain:
        for number in range(3):
            await plain.send_and_wait(topic, b"%d" % number, partition=number)
    settings: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest", "handling_grace_ms": 0}
    if protocol == "consumer":
        settings["group_protocol"] = "consumer"
    else:
        settings |= {"partition_assignment_strategy": (protocol,), "heartbeat_interval_ms": 200}
    async with (
        Producer(servers, transactional_id=fresh("id")) as producer,
        Consumer(topic, bootstrap_servers=servers, enable_auto_commit=False, **settings) as consumer,
        asyncio.timeout(60),
    ):
        while len(found := await consumer.getmany(timeout_ms=1_000)) < 3:
            await consumer.seek_to_beginning()
        taken = {partition: records[-1].offset + 1 for partition, records in found.items()}
        await producer.begin_transaction()
        async with Consumer(topic, bootstrap_servers=servers, enable_auto_commit=False, **settings):
            while len(consumer.assignment()) == 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        while len(consumer.assignment()) != 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        with pytest.raises((IllegalGeneration, StaleMemberEpoch)):
            await producer.send_offsets(taken, consumer.group_metadata())
        await producer.abort_transaction()
        assert await consumer.committed_offsets(taken) == {}


async def test_consume_transform_produce_is_exactly_once_though_workers_are_killed(
    cluster: Cluster, topic: str, admin: Admin, fresh: Callable[[str], str]
) -> None:
    target, group = fresh("out"), fresh("group")
    await admin.topics.create(target, partitions=1, replication_factor=1)
    async with Producer(cluster.bootstrap_servers) as producer:
        await producer.send_many(topic, [b"%d" % number for number in range(300)])
    arguments = (str(WORKER), cluster.bootstrap_servers, topic, target, group)

    for kill_after in (40, 120, None):
        await run_worker(arguments, kill_after)

    assert await committed(cluster, target, 300) == sorted(b"%d" % number for number in range(300))


async def run_worker(arguments: tuple[str, ...], kill_after: int | None) -> None:
    """Run the worker; kill it in the middle of a transaction after so many records, or let it end."""
    worker = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert worker.stdout is not None
    async with asyncio.timeout(90):
        async for line in worker.stdout:
            if kill_after is not None and int(line) >= kill_after:
                os.kill(worker.pid, signal.SIGKILL)
                break
        await worker.wait()
    assert kill_after is not None or worker.returncode == 0
