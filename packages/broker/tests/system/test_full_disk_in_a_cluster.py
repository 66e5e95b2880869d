"""Three brokers, of which one has a full disk: leaderships move, and come back with the room."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster, BrokerFailed
from ottla.client.cli import main
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from peers.small_disk import SmallDisk, small_disk

TIMEOUT_S = 90.0
LAG_MS = 600_000
"""No follower leaves an ISR by its lag during a test."""
VALUE_BYTES = 8_192
"""More than what is left in the last page of a log's file, of which the full disk has given all."""
SETTINGS = {
    "replica.lag.time.max.ms": str(LAG_MS),
    "min.insync.replicas": "2",
    "log.dir.full.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "log.segment.bytes": "1048576",
}


class FullDisk:
    """A cluster whose broker 1 has a small disk, and a topic with a leader on each broker."""

    def __init__(self, cluster: BrokerCluster, disk: SmallDisk) -> None:
        self.cluster = cluster
        self.disk = disk
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})

    def create(self, topic: str, replicas: list[list[int]]) -> None:
        new = NewTopic(topic, num_partitions=len(replicas), replica_assignment=replicas)
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)

    def states(self, topic: str) -> dict[int, tuple[int, list[int]]]:
        """The leader and the ISR of each partition, as broker 2 knows them."""
        admin = AdminClient({"bootstrap.servers": self.cluster.brokers[2].bootstrap_servers})
        found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return {number: (state.leader, sorted(state.isrs)) for number, state in found.items()}

    def offline(self, topic: str) -> set[tuple[int, ...]]:
        """The replicas of each partition that broker 2 names as offline."""

        async def ask() -> MetadataResponse:
            address = Address("127.0.0.1", self.cluster.brokers[2].port)
            async with Connection(address) as connection:
                request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
                return await connection.send(request, MetadataResponse)

        [found] = asyncio.run(ask()).topics
        return {tuple(partition.offline_replicas) for partition in found.partitions}

    def produce(
        self, topic: str, partition: int, value: bytes, within_s: float = TIMEOUT_S
    ) -> KafkaError | None:
        """Send one record with acks=all; return the error that its producer ends with."""
        ends: list[KafkaError | None] = []
        producer = Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap_servers,
                "acks": "all",
                "delivery.timeout.ms": int(within_s * 1000),
                "linger.ms": 0,
            }
        )

        def ended(error: KafkaError | None, _: Message) -> None:
            ends.append(error)

        producer.produce(topic, value.ljust(VALUE_BYTES), partition=partition, on_delivery=ended)
        assert producer.flush(TIMEOUT_S) == 0
        return ends[0]

    def values(self, topic: str, partition: int, count: int) -> list[bytes]:
        """So many records of a partition, from its beginning."""
        config = {"bootstrap.servers": self.cluster.bootstrap_servers, "group.id": "g"}
        consumer = Consumer({**config, "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while len(found) < count:
                assert time.monotonic() < deadline, found
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    found.append((message.value() or b"").rstrip())
        finally:
            consumer.close()
        return found

    def is_healthy(self) -> bool:
        return self.ottla("cluster", "health").exit_code == 0

    def ottla(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-b", self.cluster.brokers[2].bootstrap_servers])


@pytest.fixture
def full(tmp_path: Path) -> Iterator[FullDisk]:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk", 64))
        of_first = {"log.dirs": str(disk.folder / "data")}
        cluster = stack.enter_context(BrokerCluster(tmp_path / "cluster", SETTINGS, of_broker={1: of_first}))
        yield FullDisk(cluster, disk)


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(0.05)


def test_leaderships_on_a_full_disk_move_to_in_sync_replicas_and_come_back_with_the_room(
    full: FullDisk,
) -> None:
    full.create("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    for number in range(3):
        assert full.produce("t", number, b"before") is None
    full.disk.fill()

    for number in range(3):
        assert full.produce("t", number, b"during") is None

    assert full.states("t") == {0: (2, [2, 3]), 1: (2, [2, 3]), 2: (3, [2, 3])}
    assert full.offline("t") == {(1,)}
    health = full.ottla("cluster", "health")
    assert health.exit_code == 1
    assert "broker 1 has 0 bytes left" in health.output
    assert [full.values("t", number, 2) for number in range(3)] == [[b"before", b"during"]] * 3

    full.disk.free()

    until(full.is_healthy, lambda: full.ottla("cluster", "health").output)
    assert {tuple(isr) for _, isr in full.states("t").values()} == {(1, 2, 3)}
    assert full.offline("t") == {()}
    assert full.ottla("leader", "elect", "--preferred", "--all").exit_code == 0
    until(lambda: full.states("t")[0][0] == 1, lambda: full.states("t"))
    for number in range(3):
        assert full.produce("t", number, b"after") is None
        assert full.values("t", number, 3) == [b"before", b"during", b"after"]


def test_a_leader_without_another_in_sync_replica_stays_and_serves_what_it_has(full: FullDisk) -> None:
    full.create("alone", [[1]])
    admin = full.ottla("topic", "alter", "alone", "--config", "min.insync.replicas=1")
    assert admin.exit_code == 0, admin.output
    assert full.produce("alone", 0, b"before") is None
    full.disk.fill()

    refused = full.produce("alone", 0, b"refused", within_s=3.0)

    assert refused is not None
    assert full.states("alone") == {0: (1, [1])}
    assert full.values("alone", 0, 1) == [b"before"]
    problems = json.loads(full.ottla("cluster", "health", "--json").stdout)
    assert "log directory full" in {problem["kind"] for problem in problems}

    full.disk.free()

    assert full.produce("alone", 0, b"after") is None
    assert full.values("alone", 0, 2) == [b"before", b"after"]


def test_a_broker_that_is_killed_on_a_full_disk_starts_with_its_records_once_there_is_room(
    full: FullDisk,
) -> None:
    full.create("t", [[1, 2, 3]])
    assert full.produce("t", 0, b"before") is None
    full.disk.fill()
    assert full.produce("t", 0, b"during") is None
    broker = full.cluster.brokers[1]
    broker.kill()

    with pytest.raises(BrokerFailed, match=r"No space left on device.*make room and start the broker again"):
        broker.start()
    broker.kill()
    full.disk.free()
    broker.start()

    until(full.is_healthy, lambda: full.ottla("cluster", "health").output)
    assert full.states("t") == {0: (2, [1, 2, 3])}
    compared = json.loads(full.ottla("replica", "verify", "--topic", "t", "--json").stdout)
    assert {partition["result"] for partition in compared} == {"equal"}
