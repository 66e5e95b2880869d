"""Our producer in transactions of version 2 and 1, on Apache Kafka 4.4 and 3.9 and our broker (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.admin.features import Change
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.producer.transactions.state import ProducerFenced
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import ApacheKafka
from peers.kraft_kafka import KraftKafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


SETTINGS: Final = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
BOUND_S: Final = 120
IDLE_S: Final = 1.0


def kraft(folder: Path, level: int, settings: dict[str, str]) -> KraftKafka:
    return KraftKafka(folder, settings, format_arguments=["--feature", f"transaction.version={level}"])


@pytest.fixture(scope="module", params=["4.4 version-2", "4.4 version-1", "3.9", "ottla"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    broker: AbstractContextManager[ApacheKafka | BrokerProcess | KraftKafka]
    if request.param == "3.9":
        broker = ApacheKafka(folder, SETTINGS, heap="512m")
    elif request.param == "ottla":
        broker = BrokerProcess(folder, SETTINGS)
    else:
        broker = kraft(folder, int(request.param[-1]), SETTINGS)
    with broker as running:
        yield running.bootstrap_servers


async def committed_values(servers: str, topic: str, count: int) -> list[bytes | None]:
    async with (
        Consumer(
            topic, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer,
        asyncio.timeout(60),
    ):
        return [(await consumer.getone()).value for _ in range(count)]


async def test_transactions_are_committed_and_aborted_one_after_the_other(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create("copies", partitions=3)
    async with Producer(servers, transactional_id="copier") as producer:
        for number in range(20):
            await producer.begin_transaction()
            for partition in range(3):
                await producer.send("copies", b"%d" % number, partition=partition)
            await producer.send_offsets({TopicPartition("copies", 0): number}, "readers")
            await (producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction())

    expected = sorted(b"%d" % number for number in range(20) if number % 4 != 3 for _ in range(3))
    assert sorted(value or b"" for value in await committed_values(servers, "copies", 45)) == expected
    async with Admin(servers) as admin:
        assert await admin.groups.committed("readers") == {TopicPartition("copies", 0): (18, "")}


async def test_a_producer_that_another_one_replaced_is_fenced(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create("fenced", partitions=1)
    async with Producer(servers, transactional_id="one") as old:
        await old.begin_transaction()
        await old.send_and_wait("fenced", b"old")
        async with Producer(servers, transactional_id="one") as new:
            async with new.transaction():
                await new.send_and_wait("fenced", b"new")
        with pytest.raises(ProducerFenced):
            await old.commit_transaction()

    assert await committed_values(servers, "fenced", 1) == [b"new"]


async def open_too_long(servers: str, producer: Producer, topic: str) -> None:
    """Write into a transaction, and wait until its coordinator has aborted it."""
    name = producer.config.transactional_id
    assert name is not None
    await producer.begin_transaction()
    await producer.send_and_wait(topic, b"late")
    async with Admin(servers) as admin, asyncio.timeout(BOUND_S):
        while (await admin.transactions.describe(name)).state != "CompleteAbort":  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_producer_whose_transaction_took_too_long_is_fenced(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create("slow", partitions=2)
    async with Producer(servers, transactional_id="slow-end", transaction_timeout_ms=1_000) as producer:
        await open_too_long(servers, producer, "slow")
        for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
            with pytest.raises(ProducerFenced):
                await call()
    async with Producer(servers, transactional_id="slow-write", transaction_timeout_ms=1_000) as producer:
        await open_too_long(servers, producer, "slow")
        with pytest.raises(ProducerFenced):
            await producer.send_and_wait("slow", b"later")
        with pytest.raises(ProducerFenced):
            await producer.commit_transaction()
    async with Producer(servers, transactional_id="slow-offsets", transaction_timeout_ms=1_000) as producer:
        await open_too_long(servers, producer, "slow")
        with pytest.raises(ProducerFenced):
            await producer.send_offsets({TopicPartition("slow", 0): 1}, "slow-readers")


async def rise(servers: str, producer: Producer) -> int:
    """Do a transaction; return by how much the epoch of the producer has risen."""
    name = producer.config.transactional_id
    assert name is not None
    async with Admin(servers) as admin:
        before = (await admin.transactions.describe(name)).producer_epoch
        async with producer.transaction():
            await producer.send_and_wait("levels", b"x")
        async with asyncio.timeout(BOUND_S):
            while (now := await admin.transactions.describe(name)).state != "CompleteCommit":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    return now.producer_epoch - before


@pytest.mark.parametrize("kind", ["kafka", "ottla"])
async def test_one_producer_follows_the_level_of_the_feature(kind: str, tmp_path: Path) -> None:
    """It goes up and down between two transactions, and the producer hears of it as it connects again."""
    settings = {**SETTINGS, "connections.max.idle.ms": str(int(IDLE_S * 1_000))}
    broker: KraftKafka | BrokerProcess
    broker = kraft(tmp_path, 2, settings) if kind == "kafka" else BrokerProcess(tmp_path, settings)
    with broker as running:
        servers = running.bootstrap_servers
        async with Admin(servers) as admin:
            await admin.topics.create("levels", partitions=1)
        async with Producer(servers, transactional_id="levels") as producer:
            risen = [await rise(servers, producer)]
            for level, expected in ((1, 0), (2, 2)):
                change = Change.UPGRADE if level == 2 else Change.SAFE_DOWNGRADE
                async with Admin(servers) as admin:
                    await admin.features.update({"transaction.version": level}, change)
                async with asyncio.timeout(BOUND_S):
                    while (found := await rise(servers, producer)) != expected:  # noqa: ASYNC110
                        await asyncio.sleep(2 * IDLE_S)  # the broker closes the connections
                risen.append(found)
            risen.append(await rise(servers, producer))

    assert risen == [1, 0, 2, 1]


async def test_an_empty_transaction_and_one_of_offsets_alone_end(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create("sources", partitions=1)
    async with Producer(servers, transactional_id="offsets") as producer:
        async with producer.transaction():
            pass
        for offset in (3, 4):
            async with producer.transaction():
                await producer.send_offsets({TopicPartition("sources", 0): offset}, "alone")

    async with Admin(servers) as admin:
        assert await admin.groups.committed("alone") == {TopicPartition("sources", 0): (4, "")}
