"""Metrics that unmodified clients push (KIP-714), asked for by Kafka's script and read from the page."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from ottla.broker.testing import BrokerProcess
from peers.fetched_programs import python_environment
from peers.java import java_command
from peers.maven import KAFKA_4, kafka_4_tools, kafka_clients
from peers.otlp_receiver import OtlpReceiver
from peers.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

HERE: Final = Path(__file__).parent
BOUND_S: Final = 180
_SAMPLE: Final = re.compile(r"^(kafka_client_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


def java(version: str) -> list[str]:
    return java_command(HERE / "java" / "ClientTelemetry.java", kafka_clients(version))


def confluent_kafka(version: str) -> list[str]:
    python = python_environment(f"confluent-kafka=={version}")
    return [str(python), str(HERE / "python" / "confluent_kafka_telemetry.py")]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    **{f"java {version}": partial(java, version) for version in ("3.9.1", KAFKA_4)},
    **{f"confluent-kafka {version}": partial(confluent_kafka, version) for version in ("2.5.3", "2.16.1")},
}
SOFTWARE: Final = {"java": "apache-kafka-java", "confluent-kafka": "confluent-kafka-python"}


class MeasuredBroker:
    """A broker with a page of metrics, and a collector that it hands what clients push."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.collector = OtlpReceiver()
        settings = {"metrics.port": str(self._port), "telemetry.otlp.endpoint": self.collector.url}
        self.process = BrokerProcess(folder, settings)

    def samples(self) -> dict[str, tuple[dict[str, str], float]]:
        """Return the values of clients by name, each with its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        return {
            name: (dict(_LABEL.findall(labels)), float(value))
            for name, labels, value in _SAMPLE.findall(page)
        }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MeasuredBroker]:
    made = MeasuredBroker(tmp_path / "broker")
    with made.collector, made.process:
        yield made


def client_metrics(broker: MeasuredBroker, *arguments: str) -> str:
    """Run Kafka's script for subscriptions."""
    command = ["java", "-cp", kafka_4_tools(), "org.apache.kafka.tools.ClientMetricsCommand"]
    servers = ["--bootstrap-server", broker.process.bootstrap_servers]
    done = subprocess.run(
        [*command, *servers, *arguments], capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafkas_script_writes_shows_lists_and_deletes_subscriptions(broker: MeasuredBroker) -> None:
    client_metrics(
        broker, "--alter", "--name", "rates", "--metrics", "org.apache.kafka.producer.", "--interval", "500",
        "--match", "client_software_name=apache.*",
    )  # fmt: skip

    described = client_metrics(broker, "--describe", "--name", "rates")
    assert "interval.ms=500" in described
    assert "metrics=org.apache.kafka.producer." in described
    assert client_metrics(broker, "--list").split() == ["rates"]
    client_metrics(broker, "--delete", "--name", "rates")
    assert client_metrics(broker, "--list").split() == []


@pytest.mark.parametrize("client", CLIENTS)
def test_the_page_and_a_collector_have_the_metrics_of_a_client_until_it_leaves(
    broker: MeasuredBroker, client: str
) -> None:
    client_metrics(broker, "--alter", "--name", "all", "--metrics", "*", "--interval", "500")
    command = [*CLIENTS[client](), broker.process.bootstrap_servers]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin is not None
        try:
            while not (shown := broker.samples()):
                assert running.poll() is None
            said, _ = running.communicate("\n", timeout=BOUND_S)
        finally:
            running.kill()

    assert said.splitlines()[-1] == "closed"
    name, version = client.rsplit(" ", 1)
    for labels, _ in shown.values():
        assert labels["client_id"] == "measured"
        assert labels["client_software_name"] == SOFTWARE[name]
        assert labels["client_software_version"].startswith(version)
    assert any("producer" in sample for sample in shown)
    ((attributes, names), *_) = broker.collector.received.get(timeout=BOUND_S).resources
    assert attributes["client_software_name"] == SOFTWARE[name]
    assert all(metric.startswith("org.apache.kafka.") for metric in names)
    assert names
    while broker.samples():  # they go with the connection, which the broker sees end
        pass
