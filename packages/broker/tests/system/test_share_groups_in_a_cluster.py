"""Share groups on three brokers: state on other brokers, and leaders and coordinators that are killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster

pytestmark = pytest.mark.timeout(600)

RECORDS = 300
BOUND_S = 240.0
SETTINGS = {
    "group.share.heartbeat.interval.ms": "500",
    "group.share.record.lock.duration.ms": "3000",
    "share.coordinator.state.topic.num.partitions": "6",
    "share.coordinator.state.topic.replication.factor": "3",
}


class Reading:
    """Two members of one share group, each in a thread; `values` counts what they were given."""

    def __init__(self, servers: str, topic: str) -> None:
        self.values: Counter[str] = Counter()
        self._servers = servers
        self._topic = topic
        self._is_over = threading.Event()

    def _read(self) -> None:
        consumer = ShareConsumer({"bootstrap.servers": self._servers, "group.id": "group"})
        consumer.subscribe([self._topic])
        while not self._is_over.is_set():
            for message in consumer.poll(0.5):
                if message.error() is None:
                    self.values[message.value().decode()] += 1
        consumer.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._read) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def wait_for(self, wanted: set[str]) -> set[str]:
        """Return what is still missing of these values, after a time at most."""
        deadline = time.monotonic() + BOUND_S
        while (missing := wanted - self.values.keys()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return missing


def test_every_record_is_delivered_while_brokers_are_killed(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, SETTINGS) as cluster:
        servers = cluster.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 4, 3, config={"min.insync.replicas": "2"})])["t"].result(60)
        reading, producer = Reading(servers, "t"), Producer({"bootstrap.servers": servers, "acks": "all"})
        with reading.running():
            _begin(reading, producer)
            for number in range(RECORDS):
                producer.produce("t", value=f"record-{number}")
                producer.flush(60)
                if number in (RECORDS // 3, 2 * RECORDS // 3):
                    broker = cluster.brokers[1 if number < RECORDS // 2 else 2]
                    broker.kill()
                    broker.start()
            missing = reading.wait_for({f"record-{number}" for number in range(RECORDS)})

    assert not missing


def _begin(reading: Reading, producer: Producer) -> None:
    """Produce until the group reads every partition: it begins at the end of the log."""
    deadline = time.monotonic() + BOUND_S
    first: set[str] = set()
    while len({value.split("-")[1] for value in first & reading.values.keys()}) < 4:
        assert time.monotonic() < deadline
        for partition in range(4):
            value = f"first-{partition}-{len(first)}"
            producer.produce("t", value=value, partition=partition)
            first.add(value)
        producer.flush(60)
        time.sleep(0.2)
