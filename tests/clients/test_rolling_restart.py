"""Clients ride through a rolling restart of three brokers without an error for the application, or a loss."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import Message
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.consumer import Consumer
from ottla.producer import Producer
from peers.rolling_restart import BOUND_S, restart_all

pytestmark = [
    pytest.mark.timeout(400),
    # kafka-python leaves the sockets of brokers that went away to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PAUSE_S: Final = 0.01
"""Between two records of a producer: a thousand or two are written while all brokers restart."""
GROUP: Final = "readers"


def open_sockets() -> set[socket.socket]:
    return {each for each in gc.get_objects() if issubclass(type(each), socket.socket) and each.fileno() >= 0}


@pytest.fixture
def sockets_closed() -> Iterator[None]:
    """Close what kafka-python leaves open of brokers that went away; else it fails a later test."""
    before = open_sockets()
    yield
    for left in open_sockets() - before:
        left.close()


@pytest.fixture
def cluster(tmp_path: Path, sockets_closed: None) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, {"min.insync.replicas": "2"}) as running:
        yield running


class Run:
    """Records that one client wrote and read; `stopped` once all brokers have restarted."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self.servers = cluster.bootstrap_servers
        self.topic = topic
        self.stopped = False
        self.given_up = False
        """The test has failed: threads shall end, too."""
        self.written: list[bytes] = []
        self.read: set[bytes] = set()
        self.longest_s = 0.0
        """The longest that an acknowledgement took."""

    def values(self) -> Iterator[bytes]:
        """Values until the run is stopped; after each of them the time it took is taken."""
        number = 0
        while not self.stopped:
            value = b"%d" % number
            begun_s = time.monotonic()
            yield value
            self.written.append(value)
            self.longest_s = max(self.longest_s, time.monotonic() - begun_s)
            number += 1

    @property
    def is_complete(self) -> bool:
        return self.given_up or (self.stopped and len(self.read) >= len(self.written))


# ---- clients: each writes with acks=all, and reads in a group


async def ottla_writes(run: Run) -> None:
    async with Producer(run.servers) as producer:
        for value in run.values():
            await producer.send_and_wait(run.topic, value)
            await asyncio.sleep(PAUSE_S)


async def ottla_reads(run: Run) -> None:
    consumer = Consumer(
        run.topic, bootstrap_servers=run.servers, group_id=GROUP, auto_offset_reset="earliest"
    )
    async with consumer:
        while not run.is_complete:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                run.read.update(one.value or b"" for one in records)


async def aiokafka_writes(run: Run) -> None:
    async with AIOKafkaProducer(bootstrap_servers=run.servers, acks="all") as producer:
        for value in run.values():
            await producer.send_and_wait(run.topic, value)
            await asyncio.sleep(PAUSE_S)


async def aiokafka_reads(run: Run) -> None:
    consumer = AIOKafkaConsumer(
        run.topic, bootstrap_servers=run.servers, group_id=GROUP, auto_offset_reset="earliest"
    )
    async with consumer:
        while not run.is_complete:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                run.read.update(one.value for one in records)
        # aiokafka 0.14.0 never finds its coordinator while it closes: where that has moved since the last
        # heartbeat, its last commit is repeated for ever. A commit before that finds it.
        await consumer.commit()


def _confluent_writes(run: Run) -> None:
    failures: list[ConfluentError] = []

    def delivered(error: ConfluentError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = ConfluentProducer({"bootstrap.servers": run.servers, "acks": "all"})
    for value in run.values():
        producer.produce(run.topic, value, on_delivery=delivered)
        assert producer.flush(BOUND_S) == 0
        assert failures == []
        time.sleep(PAUSE_S)


def _confluent_reads(run: Run) -> None:
    settings = {"bootstrap.servers": run.servers, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer(settings)
    consumer.subscribe([run.topic])
    try:
        while not run.is_complete:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                run.read.add(message.value() or b"")
    finally:
        consumer.close()


def _kafka_python_writes(run: Run) -> None:
    producer = KafkaProducer(bootstrap_servers=run.servers.split(","), acks="all")
    try:
        for value in run.values():
            producer.send(run.topic, value).get(BOUND_S)
            time.sleep(PAUSE_S)
    finally:
        producer.close()


def _kafka_python_reads(run: Run) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=run.servers.split(","),
        group_id=GROUP,
        auto_offset_reset="earliest",
    )
    # kafka-python 3.0.12 joins at once and again when it knows the topic's partitions; where these come while
    # it assigns them it waits for ever. It knows them before it joins here.
    assert consumer.partitions_for_topic(run.topic)
    consumer.subscribe([run.topic])
    try:
        while not run.is_complete:
            for records in consumer.poll(200).values():
                run.read.update(one.value for one in records)
    finally:
        consumer.close()


Work = Callable[[Run], Awaitable[None]]


def on_thread(work: Callable[[Run], None]) -> Work:
    return lambda run: asyncio.to_thread(work, run)


CLIENTS: Final[dict[str, tuple[Work, Work]]] = {
    "ottla": (ottla_writes, ottla_reads),
    "aiokafka": (aiokafka_writes, aiokafka_reads),
    "confluent": (on_thread(_confluent_writes), on_thread(_confluent_reads)),
    "kafka-python": (on_thread(_kafka_python_writes), on_thread(_kafka_python_reads)),
}


# ---- the restart


async def has_read(run: Run, count: int) -> None:
    async with asyncio.timeout(BOUND_S):
        while len(run.read) < count:  # noqa: ASYNC110 - the reader may be on a thread
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("client", CLIENTS)
async def test_no_error_reaches_the_application_in_a_rolling_restart(
    cluster: BrokerCluster, client: str
) -> None:
    topic = f"ride-{client}"
    run = Run(cluster, topic)
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=3, replication_factor=3)
        async with asyncio.timeout(2 * BOUND_S), asyncio.TaskGroup() as tasks:
            for work in CLIENTS[client]:
                tasks.create_task(_awaited(work, run))
            try:
                await has_read(run, 20)
                await restart_all(cluster, admin, topic)
                await has_read(run, len(run.written) + 20)
            except BaseException:
                run.given_up = True
                raise
            finally:
                run.stopped = True
    print(f"{client}: {len(run.written)} records, the slowest acknowledgement took {run.longest_s:.2f} s")
    assert run.read >= set(run.written)


async def _awaited(work: Work, run: Run) -> None:
    await work(run)
