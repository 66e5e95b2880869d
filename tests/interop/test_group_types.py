"""Consumer, share and streams groups of Apache Kafka 4.4, as the admin client and the console show them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer

from ottla.admin import EARLIEST, Admin, GroupDescription
from ottla.client.config import ClientConfig
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.protocol.errors import GroupIdNotFound, NonEmptyGroup
from ottla.protocol.topics import TopicPartition
from peers.cluster_commands import command_for
from peers.java import compile_program
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_4, classpath
from peers.processes import Process

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

RECORDS = 30
BOUND_S = 90.0


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftKafka]:
    with KraftKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
async def admin(kafka: KraftKafka) -> AsyncIterator[Admin]:
    async with Admin(kafka.bootstrap_servers) as connected:
        yield connected


async def filled(admin: Admin, kafka: KraftKafka, topic: str) -> None:
    """Make a topic of three partitions with ten records in each."""
    await admin.topics.create(topic, partitions=3)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(topic, key=str(number), value=b"x" * 10, partition=number % 3)
    assert await asyncio.to_thread(producer.flush, 30) == 0


@contextmanager
def polling(consumer: Consumer | ShareConsumer, topic: str) -> Iterator[None]:
    """Read with a consumer in a thread while the block runs."""
    is_over = threading.Event()

    def read() -> None:
        consumer.subscribe([topic])
        while not is_over.is_set():
            consumer.poll(0.2) if isinstance(consumer, Consumer) else consumer.poll(timeout=0.2)
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60)


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until the answer is yes."""
    deadline = time.monotonic() + BOUND_S
    while not await ask():
        assert time.monotonic() < deadline, "it did not come to be"
        await asyncio.sleep(0.2)


async def described(admin: Admin, name: str) -> GroupDescription | None:
    try:
        return await admin.groups.describe(name)
    except GroupIdNotFound:
        return None


async def page(kafka: KraftKafka, path: str) -> str:
    async with serving(ClusterSettings("kafka", kafka.bootstrap_servers, ClientConfig)) as console:
        answer = await console.get(f"/c/kafka{path}")
        assert answer.status_code == 200, answer.text
        return answer.text


async def test_a_consumer_group_has_epochs_owners_lag_and_is_reset_once_it_is_empty(
    admin: Admin, kafka: KraftKafka
) -> None:
    await filled(admin, kafka, "newer")
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers, "group.id": "newer-group", "client.id": "cashier",
            "group.protocol": "consumer", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100,
        }
    )  # fmt: skip

    async def has_read_all() -> bool:
        if await described(admin, "newer-group") is None:
            return False
        progress = await admin.group_progress("newer-group")
        return len(progress.partitions) == 3 and all(found.lag == 0 for found in progress.partitions)

    with polling(consumer, "newer"):
        await until(has_read_all)
        group = await admin.groups.describe("newer-group")
        with pytest.raises(NonEmptyGroup):
            await admin.groups.delete("newer-group")
        shown = await page(kafka, "/group?name=newer-group")

    (member,) = group.members
    assert (group.type, group.state, group.assignor) == ("consumer", "Stable", "uniform")
    assert group.epoch is not None
    assert group.epoch >= 1
    assert (member.client_id, member.topics, member.is_settled, member.is_classic) == (
        "cashier", ("newer",), True, False,
    )  # fmt: skip
    assert sorted(member.partitions) == [TopicPartition("newer", index) for index in range(3)]
    assert "consumer" in shown
    assert "cashier" in shown
    await admin.groups.commit("newer-group", {TopicPartition("newer", 0): 4})
    assert [found.lag for found in (await admin.group_progress("newer-group")).partitions] == [6, 0, 0]
    listed = {found.name: found.type for found in await admin.groups.list(types=["consumer"])}
    assert listed == {"newer-group": "consumer"}
    await admin.groups.delete("newer-group")
    assert await described(admin, "newer-group") is None


async def test_a_share_group_has_members_that_read_together_and_offsets_of_its_own(
    admin: Admin, kafka: KraftKafka
) -> None:
    await filled(admin, kafka, "shared")
    members = [
        ShareConsumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "share-group", "client.id": client}
        )
        for client in ("one", "two")
    ]

    async def has_two_members() -> bool:
        group = await described(admin, "share-group")
        return group is not None and len([member for member in group.members if member.partitions]) == 2

    with polling(members[0], "shared"), polling(members[1], "shared"):
        await until(has_two_members)
        group = await admin.groups.describe("share-group")
        shown = await page(kafka, "/group?name=share-group")
        command = command_for(kafka.bootstrap_servers)
        listed = await asyncio.to_thread(command, "group", "list", "--type", "share")

    assert [line.split() for line in listed.output.splitlines()[1:]] == [
        ["share-group", "Stable", "share", "share"]
    ]
    assert (group.type, group.state) == ("share", "Stable")
    assert {member.client_id for member in group.members} == {"one", "two"}
    assert all(owner in shown for owner in ("one", "two", "share"))

    async def is_empty() -> bool:
        group = await described(admin, "share-group")
        return group is not None and not group.members

    await until(is_empty)
    starts = await admin.offsets.find({TopicPartition("shared", index): EARLIEST for index in range(3)})
    await admin.groups.alter_share_offsets("share-group", starts)
    progress = await admin.group_progress("share-group")
    assert [(found.offset, found.lag) for found in progress.partitions] == [(0, 10), (0, 10), (0, 10)]
    await admin.groups.delete_share_offsets("share-group", ["shared"])
    assert await admin.groups.share_offsets("share-group") == []
    await admin.groups.delete("share-group")
    assert await described(admin, "share-group") is None


async def test_a_streams_group_has_tasks_that_read_its_source_topics(
    admin: Admin, kafka: KraftKafka, tmp_path: Path
) -> None:
    await filled(admin, kafka, "counted")
    jars = classpath(f"org.apache.kafka:kafka-streams:{KAFKA_4}", "org.slf4j:slf4j-simple:1.7.36")
    program = Path(__file__).parent / "java" / "StreamsGroupMember.java"
    classes = await asyncio.to_thread(compile_program, program, jars)
    command = [
        "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{classes}{os.pathsep}{jars}", program.stem,
        kafka.bootstrap_servers, "counting", "counted", str(tmp_path / "state"),
    ]  # fmt: skip

    async def has_read_all() -> bool:
        group = await described(admin, "counting")
        if group is None or not group.members:
            return False
        progress = await admin.group_progress("counting")
        return len(progress.partitions) == 3 and all(found.lag == 0 for found in progress.partitions)

    with Process(command, tmp_path / "streams.out"):
        await until(has_read_all)
        group = await admin.groups.describe("counting")
        shown = await page(kafka, "/group?name=counting")

    (member,) = group.members
    (part,) = group.subtopologies
    assert (group.type, group.state, part.sources) == ("streams", "Stable", ("counted",))
    assert len(part.changelogs) == 1
    assert member.tasks is not None
    assert sorted(member.tasks.active) == [f"{part.id}_{index}" for index in range(3)]
    assert sorted(member.partitions) == [TopicPartition("counted", index) for index in range(3)]
    assert f"{part.id}_0" in shown
    assert {found.type for found in await admin.groups.list(types=["streams"])} == {"streams"}
