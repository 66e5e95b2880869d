"""One broker of Ottla or of Apache Kafka, for programs of Apache Kafka that use transactions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import ApacheKafka

KINDS = ("kafka-3.9", "ottla")
_SETTINGS = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def transactional_broker(kind: str, folder: Path) -> AbstractContextManager[Any]:
    """Return the broker; when it is entered it runs and has `bootstrap_servers`."""
    if kind == "ottla":
        return BrokerProcess(folder, _SETTINGS)
    return ApacheKafka(folder, _SETTINGS, heap="512m")
