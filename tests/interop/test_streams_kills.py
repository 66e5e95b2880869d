"""A program of Kafka Streams 4.4 counts exactly once, in both protocols, while its group's coordinator is
killed and its second instance dies and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster
from peers.apache_kafka import run_tool
from peers.committed_records import read_committed
from peers.group_coordinators import OF_CLUSTER, ONE_COORDINATOR, Coordinators
from peers.processes import Process
from peers.streams_programs import (
    BOUND_S,
    PARTITIONS,
    SHORT_SESSIONS,
    counts_of,
    exact_counts,
    produce_words,
    program,
)

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]

PART: Final = 400
"""The records that are sent before a kill, and as many after it."""
KILLS: Final = 5
SETTINGS: Final = ONE_COORDINATOR | SHORT_SESSIONS | {"transaction.state.log.num.partitions": "3"}


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
        settings = "processing.guarantee=exactly_once_v2", "replication.factor=3"
        process = program(self.servers, "count", self._folder / instance, *settings, protocol=self._protocol)
        self._instances[instance] = process.start()

    def kill(self, instance: str) -> None:
        self._instances.pop(instance).kill()

    def send(self, records: int) -> None:
        """Send more words, and return once all are acknowledged."""
        produce_words(self.servers, self.sent, records)
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
    assert counts_of(cluster.bootstrap_servers) == exact_counts(counting.sent)
    listed = run_tool(
        "org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap_servers, "list"
    )
    assert "PrepareCommit" not in listed
