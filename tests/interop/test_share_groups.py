"""Share groups of the broker with clients and tools of Apache Kafka 4.4, and with librdkafka."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerThread
from peers.java import run_program
from peers.maven import KAFKA_4, kafka_4_tools, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BOUND_S = 180.0
SHARE_MEMBER = Path(__file__).parent / "java" / "ShareMember.java"
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


def java(classpath: str, *arguments: str, timeout_s: float = BOUND_S) -> str:
    """Run a Java program, and return what it prints."""
    done = subprocess.run(
        ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath, *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tool(broker: BrokerThread, name: str, *arguments: str) -> str:
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return java(kafka_4_tools(), f"org.apache.kafka.tools.{name}", *servers, *arguments)


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


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_javas_share_consumer_accepts_and_releases(broker: BrokerThread, mode: str) -> None:
    topic = f"java-{mode}"
    new_topic(broker, topic)
    with producing(broker, topic):
        arguments = (broker.bootstrap_servers, topic, topic, mode, "30")
        printed = run_program(SHARE_MEMBER, kafka_clients(KAFKA_4), *arguments)

    assert "failed" not in printed
    lines = [line.split() for line in printed.splitlines() if line.startswith("read ")]
    deliveries: dict[tuple[str, str], list[int]] = {}
    for _, partition, offset, count in lines:
        deliveries.setdefault((partition, offset), []).append(int(count))
    assert len(deliveries) >= 30
    for (_, offset), counts in deliveries.items():
        is_released = mode == "explicit" and int(offset) % 2 == 0
        assert counts in ([1, 2], [1]) if is_released else counts == [1]


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
