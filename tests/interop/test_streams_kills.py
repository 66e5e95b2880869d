"""A program of Kafka Streams 4.4 counts exactly once, in both protocols, while its group's coordinator is
killed and its second instance dies and comes back."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster
from peers.apache_kafka import run_tool
from peers.committed_records import read_committed
from peers.group_coordinators import OF_CLUSTER, ONE_COORDINATOR, Coordinators
from peers.java import compile_program
from peers.maven import KAFKA_4, kafka_streams
from peers.processes import Process

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

PARTITIONS: Final = 3
KEYS: Final = 20
PART: Final = 400
"""The records that are sent before a kill, and as many after it."""
KILLS: Final = 5
BOUND_S: Final = 150.0
SETTINGS: Final = ONE_COORDINATOR | {
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.session.timeout.ms": "6000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path / "brokers", SETTINGS | OF_CLUSTER) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        topics = [NewTopic(name, PARTITIONS, 3) for name in ("words", "counts")]
        for created in admin.create_topics(topics).values():
            created.result(60)
        yield running


class Counting:
    """A run of two instances of the program, of which the second comes and goes."""

    def __init__(self, servers: str, protocol: str, folder: Path) -> None:
        self.servers = servers
        self.sent = 0
        self._protocol = protocol
        self._folder = folder
        self._instances: dict[str, Process] = {}

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._instances.values():
            process.kill()

    def start(self, instance: str) -> None:
        folder = self._folder / instance
        folder.mkdir(parents=True, exist_ok=True)
        class_path = kafka_streams(KAFKA_4)
        source = Path(__file__).parent / "java" / "StreamsOfToday.java"
        command = [
            "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{compile_program(source, class_path)}{os.pathsep}{class_path}", source.stem,
            self.servers, "app", "count", str(folder / "state"), f"group.protocol={self._protocol}",
            "processing.guarantee=exactly_once_v2", "replication.factor=3",
        ]  # fmt: skip
        self._instances[instance] = Process(command, folder / "streams.out").start()

    def kill(self, instance: str) -> None:
        self._instances.pop(instance).kill()

    def send(self, records: int) -> None:
        """Send more words, and return once all are acknowledged."""
        producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})
        for number in range(self.sent, self.sent + records):
            producer.produce("words", f"{_word(number)} {number}".encode(), partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(BOUND_S) == 0
        self.sent += records

    def counted(self) -> int:
        return len(read_committed(self.servers, "counts"))

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds; what the programs have said is in the error."""
        deadline = time.monotonic() + BOUND_S
        while not condition():
            words = {name: process.last_words() for name, process in self._instances.items()}
            assert time.monotonic() < deadline, f"{self.counted()} of {self.sent} counted: {words}"
            time.sleep(0.2)


def _word(number: int) -> str:
    return f"word{number * 7919 % KEYS}"


def counts_of(servers: str) -> dict[str, list[int]]:
    """Return the committed counts of each word, in their order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for record in read_committed(servers, "counts"):
        found[(record.key() or b"").decode()].append(int(record.value() or b""))
    return found


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_counts_are_exact_while_coordinators_are_killed(
    cluster: BrokerCluster, protocol: str, tmp_path: Path
) -> None:
    coordinators = Coordinators(cluster)
    with Counting(cluster.bootstrap_servers, protocol, tmp_path) as counting:
        counting.start("first")

        for kill in range(KILLS):
            counting.send(PART)
            # The coordinator is killed amid the work, with a transaction open.
            counting.wait_until(lambda: counting.counted() > counting.sent - PART)
            with coordinators.killed():
                if kill % 2:
                    counting.kill("second")
                else:
                    counting.start("second")
                counting.send(PART)
                counting.wait_until(lambda: counting.counted() >= counting.sent)

    assert coordinators.kills == KILLS
    expected = Counter(_word(number) for number in range(counting.sent))
    counts = counts_of(cluster.bootstrap_servers)
    assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}
    listed = run_tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap_servers, "list"
    )
    assert "PrepareCommit" not in listed
