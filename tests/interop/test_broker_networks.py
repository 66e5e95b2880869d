"""A broker of Apache Kafka that connects from another address than the one that it advertises."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerProcess, free_port
from peers.apache_kafka import ApacheKafka, ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TIMEOUT_S: Final = 60.0
COMES_FROM: Final = "127.0.0.1"
"""The system's choice for a connection to a loopback address."""


@pytest.mark.parametrize("networks", [f"{COMES_FROM}/32", ""], ids=["listed", "not listed"])
def test_a_broker_is_served_from_a_network_that_is_listed(tmp_path: Path, networks: str) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(tmp_path / "zookeeper"))
        port = free_port()
        advertised = f"PLAINTEXT://127.0.0.3:{port}"
        settings = {
            "broker.id": "2",
            "inter.broker.protocol.version": "2.8",
            "listeners": f"PLAINTEXT://0.0.0.0:{port}",
            "advertised.listeners": advertised,
        }
        apache = ApacheKafka(tmp_path / "2", settings, zookeeper=zookeeper, heap="384m")
        apache.port = port
        stack.enter_context(apache)
        own = {
            "broker.id": "1",
            "zookeeper.connect": zookeeper.connect_string,
            "inter.broker.networks": networks,
        }
        ottla = BrokerProcess(tmp_path / "1", own)
        ottla.host = "127.0.0.2"
        stack.enter_context(ottla)
        if not networks:
            assert ottla.wait(TIMEOUT_S) != 0
            refusal = rf"from {COMES_FROM}: .*127\.0\.0\.3; inter\.broker\.networks"
            assert re.search(refusal, ottla.last_words()), ottla.last_words()
            return
        admin = AdminClient({"bootstrap.servers": ottla.bootstrap_servers})
        new = NewTopic("t", num_partitions=2, replica_assignment=[[1, 2], [2, 1]])
        admin.create_topics([new])["t"].result(TIMEOUT_S)
        deadline_s = time.monotonic() + TIMEOUT_S
        while any(
            sorted(state.isrs) != [1, 2]
            for state in admin.list_topics("t", timeout=TIMEOUT_S).topics["t"].partitions.values()
        ):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
