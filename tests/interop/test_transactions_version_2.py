"""Our producer in transactions of version 2 and of version 1, on Apache Kafka 4.4 (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.producer.transactions.state import ProducerFenced
from ottla.protocol.topics import TopicPartition
from peers.kraft_kafka import KraftKafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[2, 1], ids=["version-2", "version-1"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    level = ["--feature", f"transaction.version={request.param}"]
    with KraftKafka(tmp_path_factory.mktemp("kafka"), format_arguments=level) as running:
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
