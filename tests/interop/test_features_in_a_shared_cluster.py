"""Feature levels with Kafka's own tools, and with a broker of Apache Kafka 3.9 that joins a cluster."""

from __future__ import annotations

import asyncio
import re
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.errors import ClientError
from ottla.producer import Producer as OwnProducer
from ottla.producer import ProducerConfig
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import ApacheKafka, ZooKeeper, run_tool
from peers.cluster_commands import command_for
from peers.committed_records import read_committed
from peers.java import java_command, run_program
from peers.maven import KAFKA_4, kafka_4_tools, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

PROGRAM: Final = Path(__file__).parent / "java" / "RisingEpochs.java"
BOUND_S: Final = 180.0
APACHE: Final = 1
OTTLA: Final = 2
FEATURES: Final = ("group.version", "share.version", "streams.version", "transaction.version")
INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
OFF: Final = "features are off while brokers without them are members"
RECORDS: Final = 20
SETTINGS: Final = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}


# ---- Kafka's tool and admin client


def kafka_features(broker: BrokerProcess, *arguments: str) -> str:
    return run_tool(
        "org.apache.kafka.tools.FeatureCommand",
        "--bootstrap-server", broker.bootstrap_servers, *arguments,
        class_path=kafka_4_tools(),
    )  # fmt: skip


def finalized(shown: str) -> dict[str, int]:
    """Return the finalized levels that kafka-features shows."""
    found = re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (-?\d+)", shown)
    return {name: int(level) for name, level in found}


def test_kafka_features_of_kafka_4_describes_and_changes_the_levels(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker", SETTINGS) as broker:
        assert finalized(kafka_features(broker, "describe")) == dict(zip(FEATURES, (1, 2, 1, 2), strict=True))

        lower = ("--feature", "transaction.version=0", "--feature", "share.version=0")
        kafka_features(broker, "downgrade", *lower)
        lowered = finalized(kafka_features(broker, "describe"))
        assert (lowered["transaction.version"], lowered["share.version"]) == (0, 0)
        with pytest.raises(RuntimeError, match="only supports versions 0-1"):
            kafka_features(broker, "upgrade", "--feature", "group.version=7")

        higher = ("--feature", "transaction.version=2", "--feature", "share.version=2")
        kafka_features(broker, "upgrade", *higher)
        assert finalized(kafka_features(broker, "describe")) == dict(zip(FEATURES, (1, 2, 1, 2), strict=True))


# ---- a broker of Apache Kafka joins


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as running:
        yield running


@pytest.fixture
def ottla(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = SETTINGS | {"zookeeper.connect": zookeeper.connect_string, "broker.id": str(OTTLA)}
    with BrokerProcess(tmp_path / "ottla", settings) as running:
        yield running


def apache(zookeeper: ZooKeeper, folder: Path) -> ApacheKafka:
    settings = SETTINGS | {"broker.id": str(APACHE), "inter.broker.protocol.version": "2.8"}
    return ApacheKafka(folder, settings, zookeeper=zookeeper, heap="384m")


def read_all(servers: str, group: str, protocol: str) -> None:
    """Read the records of `events` as a member of a group, and commit."""
    settings = {
        "bootstrap.servers": servers, "group.id": group, "group.protocol": protocol,
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.subscribe(["events"])
    deadline, count = time.monotonic() + BOUND_S, 0
    while count < RECORDS:
        assert time.monotonic() < deadline, f"{count} records read by {group}"
        message = consumer.poll(1.0)
        count += message is not None and message.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


def use_everything(servers: str) -> None:
    """Use transactions of version 2, a consumer group of the newer protocol, and a classic one."""
    run_program(PROGRAM, kafka_clients(KAFKA_4), servers)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce("events", value=str(number))
    assert producer.flush(60) == 0
    read_all(servers, "modern", "consumer")
    read_all(servers, "classic", "classic")


async def ottla_feature(servers: str, *arguments: str) -> Result:
    return await asyncio.to_thread(command_for(servers), "feature", *arguments)


async def until_levels(admin: Admin, are_on: bool) -> None:
    deadline = time.monotonic() + BOUND_S
    while any(bool(feature.level) is not are_on for feature in (await admin.features.describe()).features):
        assert time.monotonic() < deadline, f"features are not {'on' if are_on else 'off'}"
        await asyncio.sleep(0.2)


async def move(admin: Admin, broker: int) -> None:
    """Move the coordinators' topics to a broker."""
    topics = [await admin.topics.describe(name) for name in INTERNAL]
    await reassign(
        admin,
        {TopicPartition(topic.name, number): (broker,) for topic in topics for number in topic.partitions},
    )


async def reassign(admin: Admin, targets: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Move partitions, and wait until they are there."""
    outcomes = await admin.partitions.reassign(targets)
    assert not any(outcomes.values()), outcomes
    deadline = time.monotonic() + BOUND_S
    while await admin.partitions.reassignments():
        assert time.monotonic() < deadline, f"the partitions are not moved: {targets}"
        await asyncio.sleep(0.2)


async def assert_everything_is_there(admin: Admin, servers: str, coordinator: int, rounds: int) -> None:
    """Compare offsets and transactions with what was written; then commit one more transaction."""
    for group, partition, offset in (
        ("g", TopicPartition("b", 0), 2),
        ("modern", TopicPartition("events", 0), RECORDS),
        ("classic", TopicPartition("events", 0), RECORDS),
    ):
        committed = await admin.groups.committed(group)
        assert committed[partition][0] == offset, group
    found = await admin.transactions.describe("rising")
    assert (found.coordinator, found.state) == (coordinator, "CompleteCommit")
    async with OwnProducer(servers, ProducerConfig(transactional_id="rising")) as producer:
        async with producer.transaction():
            await producer.send("events", b"after %d" % rounds)
    after = await admin.transactions.describe("rising")
    assert after.producer_id == found.producer_id
    assert after.producer_epoch > found.producer_epoch


@pytest.mark.parametrize("is_downgraded", [True, False], ids=["after the downgrade", "without a downgrade"])
async def test_an_apache_broker_joins_and_coordinates_what_was_made_with_every_feature(
    zookeeper: ZooKeeper, ottla: BrokerProcess, tmp_path: Path, is_downgraded: bool
) -> None:
    servers = ottla.bootstrap_servers
    async with Admin(servers) as admin:
        await admin.topics.create("events")
        await asyncio.to_thread(use_everything, servers)
        if is_downgraded:
            done = await ottla_feature(servers, "downgrade", "--all")
            assert done.exit_code == 0, done.output

        joined = apache(zookeeper, tmp_path / "apache")
        await asyncio.to_thread(joined.start)
        try:
            await until_levels(admin, are_on=False)
            lacking = {feature.lacking for feature in (await admin.features.describe()).features}
            assert lacking == {(APACHE,)}
            assert ottla.log_file.read_text().count(OFF) == (0 if is_downgraded else 1)
            await move(admin, APACHE)
            await assert_everything_is_there(admin, servers, APACHE, 1)
            refused = await ottla_feature(servers, "upgrade", "group.version=1")
            assert f"Broker {APACHE} does not support it" in refused.output
            await move(admin, OTTLA)
            await assert_everything_is_there(admin, servers, OTTLA, 2)
        finally:
            await asyncio.to_thread(joined.stop)

        if is_downgraded:
            assert (await ottla_feature(servers, "upgrade", "--all")).exit_code == 0
        await until_levels(admin, are_on=True)
        assert (await admin.groups.committed("modern"))[TopicPartition("events", 0)][0] == RECORDS


# ---- a broker of Apache Kafka joins while a transaction of version 2 is open


Step = Callable[[str], Awaitable[str]]
"""Does a step of a producer with transactions, as SteppedTransactions.java says."""
STEPPED: Final = "stepped"


@asynccontextmanager
async def java_steps(servers: str) -> AsyncIterator[Step]:
    program = Path(__file__).parent / "java" / "SteppedTransactions.java"
    command = java_command(program, kafka_clients(KAFKA_4), servers, STEPPED)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdout, process.stdin

    async def step(line: str) -> str:
        sink.write(f"{line}\n".encode())
        async with asyncio.timeout(BOUND_S):
            return (await source.readline()).decode().strip()

    try:
        yield step
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def ottla_steps(servers: str) -> AsyncIterator[Step]:
    config = ProducerConfig.of(transactional_id=STEPPED, metadata_max_age_ms=1_000)
    async with OwnProducer(servers, config) as producer, asyncio.timeout(2 * BOUND_S):

        async def perform(name: str, *words: str) -> None:
            if name == "begin":
                await producer.begin_transaction()
            elif name == "send":
                await producer.send_and_wait(words[0], words[2].encode(), partition=int(words[1]))
            elif name == "offset":
                await producer.send_offsets(
                    {TopicPartition(words[1], int(words[2])): int(words[3])}, words[0]
                )
            else:
                await (producer.commit_transaction if name == "commit" else producer.abort_transaction)()

        async def step(line: str) -> str:
            try:
                await perform(*line.split())
            except (KafkaError, ClientError) as error:
                return f"failed {error!r}"
            return "done"

        yield step


STEPS: Final = {"java": java_steps, "ottla": ottla_steps}


async def take(step: Step, *lines: str) -> None:
    for line in lines:
        assert (line, await step(line)) == (line, "done")


async def committed_values(servers: str) -> list[bytes]:
    records = await asyncio.to_thread(read_committed, servers, "events")
    return sorted(record.value() or b"" for record in records)


@asynccontextmanager
async def joined(
    zookeeper: ZooKeeper, admin: Admin, folder: Path, ottla: BrokerProcess
) -> AsyncIterator[None]:
    """Add a broker of Apache Kafka as a member of the cluster, whose features are off meanwhile."""
    broker = apache(zookeeper, folder)
    await asyncio.to_thread(broker.start)
    try:
        await until_levels(admin, are_on=False)
        assert ottla.log_file.read_text().count(OFF) == 1
        yield
    finally:
        await asyncio.to_thread(broker.stop)
    await until_levels(admin, are_on=True)


@pytest.mark.parametrize(
    "coordinator", [OTTLA, APACHE], ids=["at its coordinator", "at an Apache coordinator"]
)
@pytest.mark.parametrize("client", STEPS)
async def test_a_transaction_of_version_2_ends_that_is_open_while_an_apache_broker_joins(
    zookeeper: ZooKeeper, ottla: BrokerProcess, tmp_path: Path, client: str, coordinator: int
) -> None:
    servers = ottla.bootstrap_servers
    async with Admin(servers) as admin, STEPS[client](servers) as step:
        await admin.topics.create("events", partitions=2)
        await take(step, "begin", "send events 0 first", "offset readers events 0 7")

        async with joined(zookeeper, admin, tmp_path / "apache", ottla):
            if coordinator == APACHE:
                await move(admin, APACHE)
            await take(step, "send events 0 second", "send events 1 third", "commit")
            found = await admin.transactions.describe(STEPPED)
            assert found.coordinator == coordinator
            async with STEPS[client](servers) as step:  # one that is connected goes on with version 2
                await take(step, "begin", "send events 0 fourth", "offset readers events 0 8", "commit")
                await take(step, "begin", "send events 1 dropped", "offset readers events 0 9", "abort")
            if coordinator == APACHE:
                await move(admin, OTTLA)
        async with STEPS[client](servers) as step:
            await take(step, "begin", "send events 1 fifth", "commit")

        assert await committed_values(servers) == sorted([b"first", b"second", b"third", b"fourth", b"fifth"])
        assert (await admin.groups.committed("readers"))[TopicPartition("events", 0)][0] == 8


@pytest.mark.parametrize("client", STEPS)
async def test_a_transaction_of_version_2_is_aborted_and_repeated_where_an_apache_broker_leads(
    zookeeper: ZooKeeper, ottla: BrokerProcess, tmp_path: Path, client: str
) -> None:
    """In version 2 nobody but the leader adds a partition to the transaction: one of Apache Kafka refuses."""
    servers = ottla.bootstrap_servers
    async with Admin(servers) as admin, STEPS[client](servers) as step:
        await admin.topics.create("events", partitions=2)
        await take(step, "begin", "send events 0 dropped")

        async with joined(zookeeper, admin, tmp_path / "apache", ottla):
            await reassign(admin, {TopicPartition("events", 1): (APACHE,)})
            assert (await step("send events 1 dropped")).startswith("failed")
            assert (await step("commit")).startswith("failed")
            await take(step, "abort")
            async with STEPS[client](servers) as step:  # one that is connected goes on with version 2
                await take(step, "begin", "send events 0 first", "send events 1 second", "commit")
            await reassign(admin, {TopicPartition("events", 1): (OTTLA,)})
        async with STEPS[client](servers) as step:
            await take(step, "begin", "send events 1 third", "commit")

        assert await committed_values(servers) == [b"first", b"second", b"third"]
