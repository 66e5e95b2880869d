"""Share groups of the broker with clients and tools of Apache Kafka, with librdkafka, and with franz-go."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerThread
from peers.fetched_programs import go_program
from peers.java import java_command
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_4, kafka_4_tools, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BOUND_S = 180.0
HERE = Path(__file__).parent
SETTINGS = {"group.share.heartbeat.interval.ms": "500", "share.coordinator.state.topic.num.partitions": "4"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def new_topic(broker: BrokerThread, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)


@contextmanager
def producing(broker: BrokerThread, topic: str) -> Iterator[None]:
    """Produce numbered records while the block runs: a group begins at the end of the log."""
    is_over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        number = 0
        while not is_over.wait(0.05):
            producer.produce(topic, value=f"record-{number}".encode())
            producer.flush(10)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run(command: list[str]) -> str:
    """Run a program, and return what it prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(broker: BrokerThread, name: str, *arguments: str) -> str:
    java = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", kafka_4_tools()]
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return run([*java, f"org.apache.kafka.tools.{name}", *servers, *arguments])


def test_the_share_consumer_of_librdkafka_reads_each_record_once(broker: BrokerThread) -> None:
    new_topic(broker, "librdkafka")
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "librdkafka"})
    consumer.subscribe(["librdkafka"])
    read: Counter[tuple[int, int]] = Counter()
    deadline = time.monotonic() + BOUND_S
    with producing(broker, "librdkafka"):
        while len(read) < 30 and time.monotonic() < deadline:
            for message in consumer.poll(0.5):
                assert message.error() is None
                read[message.partition(), message.offset()] += 1
    consumer.close()

    assert len(read) >= 30
    assert set(read.values()) == {1}


def java_member(version: str) -> list[str]:
    return java_command(HERE / "java" / "ShareMember.java", kafka_clients(version))


def franz_go_member(version: str) -> list[str]:
    return [str(go_program(HERE / "go" / "franz_go_shares.go", f"github.com/twmb/franz-go@{version}"))]


MEMBERS: Final[dict[str, Callable[[], list[str]]]] = {
    **{f"java-{version}": partial(java_member, version) for version in ("4.1.2", "4.2.2", KAFKA_4)},
    **{f"franz-go-{version}": partial(franz_go_member, version) for version in ("v1.21.7", "v1.22.3")},
}
"""Share groups are a preview in Java's client 4.1, and stable from 4.2 on."""


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_share_member_accepts_and_releases(broker: BrokerThread, member: str, mode: str) -> None:
    command, topic = MEMBERS[member](), f"{member}-{mode}"
    new_topic(broker, topic)
    with producing(broker, topic):
        printed = run([*command, broker.bootstrap_servers, topic, topic, mode, "30"])

    assert "failed" not in printed
    lines = [line.split() for line in printed.splitlines() if line.startswith("read ")]
    deliveries: dict[tuple[str, str], list[int]] = {}
    for _, partition, offset, count in lines:
        deliveries.setdefault((partition, offset), []).append(int(count))
    assert len(deliveries) >= 30
    for (_, offset), counts in deliveries.items():
        is_released = mode == "explicit" and int(offset) % 2 == 0
        assert counts in ([1, 2], [1]) if is_released else counts == [1]


def test_the_early_access_of_java_4_0_is_refused_as_by_later_brokers_of_kafka(
    broker: BrokerThread, tmp_path: Path
) -> None:
    """Its ShareFetch is of version 0, which Kafka has removed since."""
    with KraftKafka(tmp_path / "kafka") as kafka:
        servers = (kafka.bootstrap_servers, broker.bootstrap_servers)
        refusals = [
            refusal_of([*java_member("4.0.2"), of, "early", "early", "implicit", "1"]) for of in servers
        ]

    assert refusals[0] == refusals[1]
    assert "UnsupportedVersionException" in refusals[1]


def refusal_of(command: list[str]) -> str:
    """Run a program that fails; return the exception with which it ends."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode != 0, done.stdout
    return next(line for line in done.stderr.splitlines() if line.startswith("Exception in"))


def test_the_console_share_consumer_reads_and_the_tools_show_and_delete_the_group(
    broker: BrokerThread,
) -> None:
    new_topic(broker, "console")
    with producing(broker, "console"):
        arguments = ("--topic", "console", "--group", "console", "--max-messages", "10")
        read = tool(broker, "consumer.ConsoleShareConsumer", *arguments)
    assert read.count("record-") == 10

    command = "consumer.group.ShareGroupCommand"
    assert "console" in tool(broker, command, "--list").split()
    described = tool(broker, command, "--describe", "--group", "console", "--offsets")
    rows = [line.split() for line in described.splitlines() if line.startswith("console")]
    assert sorted(row[2] for row in rows) == ["0", "1"]
    assert "Empty" in tool(broker, command, "--describe", "--group", "console", "--state")
    tool(
        broker, command, "--reset-offsets", "--group", "console", "--topic", "console", "--to-earliest",
        "--execute",
    )  # fmt: skip
    described = tool(broker, command, "--describe", "--group", "console", "--offsets")
    assert {line.split()[3] for line in described.splitlines() if line.startswith("console")} == {"0"}
    tool(broker, command, "--delete-offsets", "--group", "console", "--topic", "console")
    tool(broker, command, "--delete", "--group", "console")
    assert "console" not in tool(broker, command, "--list").split()


def test_the_verifiable_share_consumer_reads(broker: BrokerThread) -> None:
    new_topic(broker, "verifiable")
    with producing(broker, "verifiable"):
        printed = tool(
            broker, "VerifiableShareConsumer", "--topic", "verifiable", "--group-id", "verifiable",
            "--max-messages", "20", "--acknowledgement-mode", "sync",
        )  # fmt: skip

    assert '"records_consumed"' in printed
    assert "offsets_acknowledged" in printed


def test_kafkas_formatter_reads_the_state_of_share_groups(broker: BrokerThread) -> None:
    printed = tool(
        broker, "consumer.ConsoleConsumer", "--topic", "__share_group_state", "--from-beginning",
        "--timeout-ms", "10000", "--formatter",
        "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter",
    )  # fmt: skip

    assert '"snapshotEpoch"' in printed
    assert '"deliveryState":2' in printed.replace(" ", "")
