"""Transactions of version 2 with the producer of Java 4.4: epochs, errors and records as on Kafka 4.4."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from ottla.broker.testing import BrokerProcess
from peers.java import run_program
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_3, KAFKA_4, kafka_clients

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PROGRAM: Final = Path(__file__).parent / "java" / "RisingEpochs.java"
SETTINGS: Final = {
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


def told(servers: str, version: str = KAFKA_4) -> list[str]:
    return run_program(PROGRAM, kafka_clients(version), servers).splitlines()


def test_a_producer_of_kafka_4_is_told_the_same_as_by_kafka_4(tmp_path: Path) -> None:
    with KraftKafka(tmp_path / "kafka", SETTINGS) as kafka:
        expected = told(kafka.bootstrap_servers)
    with BrokerProcess(tmp_path / "ottla", SETTINGS) as broker:
        found = told(broker.bootstrap_servers)

    assert "committed 5: CompleteCommit +6" in expected
    assert found == expected


def test_a_producer_of_kafka_3_keeps_its_epoch(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "ottla", SETTINGS) as broker:
        found = told(broker.bootstrap_servers, KAFKA_3)

    assert "committed 5: CompleteCommit +0" in found
    assert "read {kept-0=3, kept-101=1, kept-2=3, kept-3=4, kept-5=4}" in found
