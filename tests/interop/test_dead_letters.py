"""Dead letters of share groups on Apache Kafka 4.4 and on Ottla: a Java member leaves the same ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.admin import GROUP, TOPIC, Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer, ConsumerConfig
from ottla.producer import Producer, ProducerConfig
from ottla.protocol.topics import TopicPartition
from peers.java import run_program
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_4, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BOUND_S = 90.0
UNACCEPTED = Path(__file__).parent / "java" / "UnacceptedRecords.java"
SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "auto.create.topics.enable": "false",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "num.partitions": "2",
}
COUNT = 30
DELIVERIES = 3


class Letter(NamedTuple):
    """A dead letter without its offset and time."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


async def fill(servers: str, topic: str, codec: Any) -> None:
    """Write a topic of three partitions, with records of all kinds."""
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=3)
    config = ProducerConfig(compression_type=codec, linger_ms=50)
    async with Producer(bootstrap_servers=servers, config=config) as producer:
        for number in range(COUNT * 3):
            key = None if number % 5 == 0 else f"key-{number}".encode()
            value = None if number % 7 == 0 else f"value-{number}".encode() * 20
            await producer.send(topic, value, key=key, partition=number % 3, headers=[("own", b"header")])


async def left_by_java(servers: str, topic: str, group: str, version: str, **settings: str) -> list[Letter]:
    """Read a topic by a Java member of a release; return its group's letters by place."""
    name = f"dlq.{group}"
    own = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(DELIVERIES),
        "errors.deadletterqueue.topic.name": name,
    }
    async with Admin(servers) as admin:
        await admin.configs.alter(GROUP, group, own | settings)
    arguments = (servers, group, topic, str(COUNT * 3), str(DELIVERIES))
    done = await asyncio.to_thread(run_program, UNACCEPTED, kafka_clients(version), *arguments)
    assert done.strip().endswith("done")
    return await letters_in(servers, name)


async def letters_in(servers: str, name: str) -> list[Letter]:
    found: list[Letter] = []
    config = ConsumerConfig(auto_offset_reset="earliest")
    async with (
        Consumer(name, bootstrap_servers=servers, config=config) as consumer,
        asyncio.timeout(BOUND_S),
    ):
        while len(found) < COUNT * 3 * 2 // 3:
            record: Any = await consumer.getone()
            found.append(Letter(record.partition, record.key, record.value, tuple(record.headers)))
        await no_more(consumer, name)
    return sorted(found, key=lambda letter: _place(letter.headers))


async def no_more(consumer: Consumer[Any, Any], name: str) -> None:
    """Check that the letters which were read are all there are."""
    partitions = [TopicPartition(name, number) for number in range(2)]
    ends = await consumer.end_offsets(partitions)
    assert {place: await consumer.position(place) for place in partitions} == ends


def _place(headers: tuple[tuple[str, bytes], ...]) -> tuple[int, int]:
    named = dict(headers)
    return int(named["__dlq.errors.partition"]), int(named["__dlq.errors.offset"])


async def story(servers: str, codec: str, version: str) -> dict[str, list[Letter]]:
    await fill(servers, "orders", codec)
    async with Admin(servers) as admin:
        described = {}
        letters = {
            "told": await left_by_java(servers, "orders", "told", version),
            "copied": await left_by_java(
                servers, "orders", "copied", version, **{"errors.deadletterqueue.copy.record.enable": "true"}
            ),
        }
        for name in ("dlq.told", "dlq.copied"):
            entries = {entry.name: entry.value for entry in await admin.configs.describe(TOPIC, name)}
            described[name] = entries["errors.deadletterqueue.group.enable"]
        assert described == {"dlq.told": "true", "dlq.copied": "true"}
    return letters


@pytest.mark.parametrize(
    ("codec", "version"), [("none", KAFKA_4), ("lz4", KAFKA_4), ("none", "4.1.2"), ("none", "4.2.2")]
)
def test_java_leaves_the_same_dead_letters_on_both_brokers(tmp_path: Path, codec: str, version: str) -> None:
    """Members know nothing of dead letters: a preview's leave the same ones."""
    with KraftKafka(tmp_path / "kafka", SETTINGS) as kafka:
        expected = asyncio.run(story(kafka.bootstrap_servers, codec, version))

    with BrokerProcess(tmp_path / "ottla", SETTINGS) as ottla:
        found = asyncio.run(story(ottla.bootstrap_servers, codec, version))

    assert found == expected
    reasons = {dict(letter.headers)["__dlq.errors.message"] for letter in expected["told"]}
    assert reasons == {b"Offset rejected by client.", b"Offset delivery count exceeded the threshold."}
    assert {letter.value for letter in expected["told"]} == {None}
    assert len({letter.value for letter in expected["copied"]}) > COUNT
