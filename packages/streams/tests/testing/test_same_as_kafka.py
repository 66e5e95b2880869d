"""Transactions have the same results without a broker and on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.producer import Producer, ProducerConfig, ProducerFenced, TransactionError
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.cluster import Life, MemoryCluster
from ottla.streams.testing.memory_log import MemoryLog
from ottla.streams.testing.memory_producer import MemoryProducer
from peers.kraft_kafka import KraftKafka
from peers.stream_apps import pricing
from peers.stream_benches import Bench, BrokerBench, DriverBench

pytestmark = [pytest.mark.java, pytest.mark.slow]
WAIT_S = 60


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with KraftKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap_servers


KAFKA = pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])


@pytest.fixture(params=["driver", KAFKA])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    if request.param == "driver":
        with DriverBench() as driver:
            yield driver
        return
    with BrokerBench(request.getfixturevalue("kafka")) as found:
        yield found


def test_outputs_offsets_and_dead_letters_are_committed_together(bench: Bench) -> None:
    bench.create(**{"orders": 1, "priced": 1, "orders.failed": 1})
    bench.start(lambda **settings: pricing(processing_guarantee="exactly-once", **settings))
    for number, amount in enumerate((1, -1, 2)):
        bench.send("orders", b'{"amount": %d}' % amount, b"anna")
        bench.committed("billing", "orders", number + 1)

    priced = bench.records("priced", 2)
    (letter,) = bench.records("orders.failed", 1)

    # A transaction's end takes an offset in each partition that it wrote to.
    assert [(each.offset, each.key, each.value) for each in priced] == [
        (0, b"anna", b'{"price":3}'),
        (2, b"anna", b'{"price":6}'),
    ]
    assert letter.value == b'{"amount": -1}'


@pytest.fixture(params=["memory", KAFKA])
def producers(request: pytest.FixtureRequest) -> Iterator[tuple[Producer, Producer]]:
    """Two producers with one transactional id."""
    servers = "127.0.0.1:1" if request.param == "memory" else request.getfixturevalue("kafka")
    config = ProducerConfig.from_properties({}, bootstrap_servers=servers, transactional_id="id")
    if request.param == "memory":
        cluster = MemoryCluster(MemoryLog(1), on_group=lambda group: None)
        yield tuple(MemoryProducer(config, cluster, Life(1), lambda: 0) for _ in range(2))  # type: ignore[misc]
    else:
        yield Producer(config=config), Producer(config=config)


async def test_a_producer_with_the_same_transactional_id_fences_the_first(
    producers: tuple[Producer, Producer],
) -> None:
    first, second = producers
    async with asyncio.timeout(WAIT_S), first:
        with pytest.raises(TransactionError):
            await first.send("letters", b"outside")
        await first.begin_transaction()
        with pytest.raises(TransactionError):
            await first.begin_transaction()
        await first.send("letters", b"lost")
        async with second:
            await second.begin_transaction()
            await second.send("letters", b"written")
            await second.send_offsets({TopicPartition("letters", 0): OffsetAndMetadata(7, "x")}, "readers")
            await second.commit_transaction()
            with pytest.raises(ProducerFenced):
                await first.commit_transaction()
