"""Feature levels with Kafka's own tools, and with a broker of Apache Kafka 3.9 that joins a cluster."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import Result
from confluent_kafka import Consumer, Producer

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.producer import Producer as OwnProducer
from ottla.producer import ProducerConfig
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import ApacheKafka, ZooKeeper, run_tool
from peers.cluster_commands import command_for
from peers.java import run_program
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
    targets = {
        TopicPartition(topic.name, number): (broker,) for topic in topics for number in topic.partitions
    }
    outcomes = await admin.partitions.reassign(targets)
    assert not any(outcomes.values()), outcomes
    deadline = time.monotonic() + BOUND_S
    while await admin.partitions.reassignments():
        assert time.monotonic() < deadline, f"the topics are not on broker {broker}"
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
