"""Our internal records, printed by Kafka's own formatters with kafka-console-consumer of 4.4."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.admin import Admin, GroupDescription
from ottla.broker.testing import BrokerProcess
from ottla.protocol.topics import TopicPartition as Partition
from peers.apache_kafka import run_tool
from peers.java import compile_program, java_command, run_program
from peers.maven import KAFKA_4, kafka_4_tools, kafka_clients, kafka_streams
from peers.processes import Process

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

JAVA = Path(__file__).parent / "java"
BOUND_S, RECORDS, PARTITIONS = 180.0, 60, 3
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
SHARE_STATE = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"
OF_SOME_KINDS = {
    "OffsetsMessageFormatter": {0, 1},
    "GroupMetadataMessageFormatter": {2},
    "ShareGroupMessageFormatter": set(range(9, 16)),
}
"""Kafka's formatters for __consumer_offsets, and the kinds of records that each of them prints."""
TRANSACTIONS = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        admin.create_topics([NewTopic("orders", PARTITIONS, 1)])["orders"].result(60)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("orders", str(number).encode(), key=str(number), partition=number % PARTITIONS)
        assert producer.flush(60) == 0
        yield running.bootstrap_servers


def printed(servers: str, topic: str, formatter: str) -> list[dict[str, Any]]:
    """Print as many records as a topic has now, as the tool does; return what it prints."""
    count = kept(servers, topic).total()
    tools = kafka_4_tools()
    classes = compile_program(JAVA / "EveryGroupRecord.java", tools)
    lines = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", servers, "--topic", topic,
        "--partition", "0", "--offset", "earliest", "--max-messages", str(count), "--formatter", formatter,
        class_path=f"{classes}{os.pathsep}{tools}",
    )  # fmt: skip
    return list(_documents(lines[lines.find("{") :]))


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Give the documents of a text, between which Kafka's formatters put nothing."""
    decoder, start = json.JSONDecoder(), 0
    while start < len(text):
        found, end = decoder.raw_decode(text, start)
        yield found
        start = end + len(text[end:]) - len(text[end:].lstrip())


def kept(servers: str, topic: str) -> Counter[int]:
    """Count the records of a topic's one partition by the version of their keys, which is their kind."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True,
         "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: Counter[int] = Counter()
    while True:
        for message in consumer.consume(500, timeout=1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                consumer.close()
                return found
            found[int.from_bytes((message.key() or b"")[:2], "big")] += 1


@contextmanager
def reading(consumer: Consumer | ShareConsumer) -> Iterator[None]:
    """Read in a thread while the block runs."""
    is_over = threading.Event()

    def read() -> None:
        consumer.subscribe(["orders"])
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


def described(servers: str, group: str) -> GroupDescription:
    async def describe() -> GroupDescription:
        async with Admin(servers) as admin:
            return await admin.groups.describe(group)

    return asyncio.run(describe())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def is_stable(servers: str, *names: str) -> bool:
    async def ask() -> bool:
        async with Admin(servers) as admin:
            states = {found.name: found.state for found in await admin.groups.list()}
            if not all(states.get(name) == "Stable" for name in names):
                return False
            progress = [await admin.group_progress(name) for name in names if name != "shares"]
            return all(
                len(found.partitions) >= PARTITIONS and all(one.lag == 0 for one in found.partitions)
                for found in progress
            )

    return asyncio.run(ask())


def newest(lines: list[dict[str, Any]], kind: int, group: str) -> dict[str, Any]:
    """Return the newest value of each key of a kind and group; deleted ones are not in it."""
    found: dict[str, Any] = {}
    for line in lines:
        key = line["key"]
        if key["type"] == kind and key["data"].get("groupId", key["data"].get("group")) == group:
            found[json.dumps(key["data"], sort_keys=True)] = line["value"] and line["value"]["data"]
    return {key: value for key, value in found.items() if value is not None}


def members(lines: list[dict[str, Any]], kind: int, group: str) -> dict[str, Any]:
    return {json.loads(key)["memberId"]: value for key, value in newest(lines, kind, group).items()}


def test_every_record_of_every_kind_of_group_is_printed_as_it_is_described(
    servers: str, tmp_path: Path
) -> None:
    common = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
    streams = java_command(
        JAVA / "StreamsGroupMember.java", kafka_streams(KAFKA_4), servers, "streams", "orders", str(tmp_path)
    )
    with ExitStack() as stack:
        stack.enter_context(reading(Consumer(common | {"group.id": "classic"})))
        newer = {"group.id": "newer", "group.protocol": "consumer", "client.id": "cashier"}
        stack.enter_context(reading(Consumer(common | newer)))
        shares = {"bootstrap.servers": servers, "group.id": "shares", "client.id": "taker"}
        stack.enter_context(reading(ShareConsumer(shares)))
        stack.enter_context(Process(streams, tmp_path / "streams.out"))
        wait_until(lambda: is_stable(servers, "classic", "newer", "shares", "streams"))
        groups = {name: described(servers, name) for name in ("classic", "newer", "shares", "streams")}
        lines = printed(servers, "__consumer_offsets", "EveryGroupRecord")

    _agrees(lines, groups)
    every = printed(servers, "__consumer_offsets", "EveryGroupRecord")
    kinds = Counter(line["key"]["type"] for line in every)
    assert kinds == kept(servers, "__consumer_offsets")
    assert set(kinds) >= {1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 19, 20, 21, 22}
    for formatter, shown_kinds in OF_SOME_KINDS.items():
        shown = printed(servers, "__consumer_offsets", f"org.apache.kafka.tools.consumer.{formatter}")
        assert shown == [line for line in every if line["key"]["type"] in shown_kinds], formatter
    _share_state_is_printed(servers)


def _agrees(lines: list[dict[str, Any]], groups: dict[str, GroupDescription]) -> None:
    """Compare records with the groups as they were described before."""
    for name, epoch, kind in (("newer", 3, 5), ("shares", 11, 10), ("streams", 17, 19)):
        (value,) = newest(lines, epoch, name).values()
        assert value["epoch"] == groups[name].epoch, name
        written = members(lines, kind, name)
        assert {key: value["clientId"] for key, value in written.items()} == {
            found.id: found.client_id for found in groups[name].members
        }
    (value,) = newest(lines, 2, "classic").values()
    assert [found["memberId"] for found in value["members"]] == [one.id for one in groups["classic"].members]
    assert value["protocol"] == groups["classic"].assignor
    ((_, current),) = members(lines, 8, "newer").items()
    (member,) = groups["newer"].members
    assert current["memberEpoch"] == groups["newer"].epoch
    owned = [index for found in current["assignedPartitions"] for index in found["partitions"]]
    assert sorted(owned) == sorted(partition.partition for partition in member.partitions)
    for name in ("classic", "newer", "streams"):
        commits = {json.loads(key)["partition"]: one["offset"] for key, one in newest(lines, 1, name).items()}
        assert commits == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS), name


def _share_state_is_printed(servers: str) -> None:
    """Set the start offsets of the share group once it is empty, and read them in the printed state."""

    async def starts_are_set() -> None:
        async with Admin(servers) as admin:
            starts = {Partition("orders", number): 5 for number in range(PARTITIONS)}
            await admin.groups.alter_share_offsets("shares", starts)

    wait_until(lambda: not described(servers, "shares").members)
    asyncio.run(starts_are_set())
    lines = printed(servers, "__share_group_state", SHARE_STATE)

    assert Counter(line["key"]["type"] for line in lines) == kept(servers, "__share_group_state")
    values = {line["key"]["data"]["partition"]: line["value"]["data"] for line in lines}
    assert {partition: value["startOffset"] for partition, value in values.items()} == dict.fromkeys(
        range(PARTITIONS), 5
    )


def test_every_record_of_transactions_of_version_2_is_printed(servers: str) -> None:
    run_program(JAVA / "RisingEpochs.java", kafka_clients(KAFKA_4), servers)
    lines = printed(servers, "__transaction_state", TRANSACTIONS)

    assert Counter(line["key"]["type"] for line in lines) == kept(servers, "__transaction_state")
    values = {line["key"]["data"]["transactionalId"]: line["value"]["data"] for line in lines}
    assert {line["value"]["version"] for line in lines if line["value"]} == {1}

    async def states() -> dict[str, tuple[int, int, str]]:
        async with Admin(servers) as admin:
            found = [await admin.transactions.describe(name) for name in values]
            return {one.transactional_id: (one.producer_id, one.producer_epoch, one.state) for one in found}

    assert asyncio.run(states()) == {
        name: (value["producerId"], value["producerEpoch"], value["transactionStatus"])
        for name, value in values.items()
    }
