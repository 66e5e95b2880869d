"""Apache Kafka's own Java clients and console tools against an Ottla broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import run_tool
from peers.java import run_program
from peers.maven import KAFKA_3, KAFKA_4, kafka_3_server, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

ROUNDS = ["codecs", "headers", "offsets", "groups", "static-members", "admin"]


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_the_java_client_goes_through_all_its_rounds(broker: BrokerProcess, version: str) -> None:
    program = Path(__file__).parent / "java" / "ClientRounds.java"

    printed = run_program(program, kafka_clients(version), broker.bootstrap_servers, version)

    assert [line.split()[1] for line in printed.splitlines()] == ROUNDS


def test_the_console_producer_and_consumer_pass_lines_on(broker: BrokerProcess) -> None:
    lines = "".join(f"line {number}\n" for number in range(100))
    server = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "console")
    run_tool("kafka.tools.ConsoleProducer", *server, stdin=lines)

    command = [
        "java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", kafka_3_server(),
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *server,
        "--from-beginning", "--max-messages", "100",
    ]  # fmt: skip
    consumed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    assert sorted(consumed.splitlines()) == sorted(lines.splitlines())


def test_kafkas_topic_and_group_tools_work(broker: BrokerProcess) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)

    created = run_tool(
        "org.apache.kafka.tools.TopicCommand", *server, "--create", "--topic", "tooled", "--partitions", "3"
    )
    described = run_tool("org.apache.kafka.tools.TopicCommand", *server, "--describe", "--topic", "tooled")
    groups = run_tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *server, "--list")

    assert "Created topic tooled." in created
    assert "PartitionCount: 3" in described
    assert groups is not None
