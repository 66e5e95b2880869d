"""A broker of ours with a full disk, under a controller of Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

OTTLA: Final = 1
APACHE: Final = (2, 3)
TIMEOUT_S: Final = 60.0
VALUE_BYTES: Final = 8_192
COMMON: Final = {
    "zookeeper.session.timeout.ms": "30000",  # no broker dies: a busy machine must not end a session
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "600000",  # nor does a follower leave an ISR by its lag
    "auto.leader.rebalance.enable": "false",
}
LEVEL: Final = {"inter.broker.protocol.version": "2.8"}

States = dict[int, tuple[int, list[int]]]


class Mixed:
    """Two brokers of Apache Kafka, of which one is the controller, and one of ours on a small disk."""

    def __init__(self, servers: str, disk: SmallDisk) -> None:
        self.servers = servers
        self.disk = disk
        self.admin = AdminClient({"bootstrap.servers": servers})

    def states(self) -> States:
        found = self.admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions
        return {number: (state.leader, sorted(state.isrs)) for number, state in found.items()}

    def until(self, condition: Callable[[States], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not condition(states := self.states()):
            assert time.monotonic() < deadline_s, states
            time.sleep(0.1)

    def produce(self, partition: int) -> KafkaError | None:
        ends: list[KafkaError | None] = []

        def ended(error: KafkaError | None, _: Message) -> None:
            ends.append(error)

        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "linger.ms": 0})
        producer.produce("t", bytes(VALUE_BYTES), partition=partition, on_delivery=ended)
        assert producer.flush(TIMEOUT_S) == 0
        return ends[0]


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Mixed]:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "disk", 64))
        zookeeper = stack.enter_context(ZooKeeper(tmp_path / "zookeeper"))
        servers = []
        for broker_id in APACHE:
            settings = {**COMMON, **LEVEL, "broker.id": str(broker_id)}
            apache = ApacheKafka(tmp_path / str(broker_id), settings, zookeeper=zookeeper, heap="384m")
            servers.append(stack.enter_context(apache).bootstrap_servers)
        own = {
            "broker.id": str(OTTLA),
            "zookeeper.connect": zookeeper.connect_string,
            "log.dirs": str(disk.folder / "data"),
            "log.dir.full.backoff.ms": "500",
        }
        stack.enter_context(BrokerProcess(tmp_path / "ottla", COMMON | own))
        yield Mixed(",".join(servers), disk)


def test_a_controller_of_apache_kafka_moves_leaderships_off_a_full_disk_and_back(mixed: Mixed) -> None:
    replicas = [[OTTLA, 2, 3], [2, OTTLA, 3], [3, 2, OTTLA]]
    new = NewTopic("t", num_partitions=3, replica_assignment=replicas)
    mixed.admin.create_topics([new])["t"].result(TIMEOUT_S)
    mixed.until(lambda states: all(isr == [1, 2, 3] for _, isr in states.values()))
    for partition in range(3):
        assert mixed.produce(partition) is None

    mixed.disk.fill()

    for partition in range(3):
        assert mixed.produce(partition) is None
    mixed.until(lambda states: all(isr == [2, 3] for _, isr in states.values()))
    assert mixed.states()[0][0] in APACHE

    mixed.disk.free()

    mixed.until(lambda states: all(isr == [1, 2, 3] for _, isr in states.values()))
    for partition in range(3):
        assert mixed.produce(partition) is None
