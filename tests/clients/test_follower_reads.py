"""confluent-kafka reads from the follower in its rack (KIP-392), as the brokers' metrics show."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster, free_port

pytestmark = pytest.mark.timeout(180)

BOUND_S = 60
COUNT, SIZE = 2_000, 1_000
LEADER, FOLLOWER = 1, 2
SENT = 'kafka_server_brokertopicmetrics_bytesout_total{topic="orders"}'


def sent_by(port: int) -> float:
    """Return the bytes of the topic that a broker has sent to consumers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=BOUND_S) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(SENT))


def fill(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "compression.type": "none"})
    for _ in range(COUNT):
        producer.produce("orders", b"x" * SIZE)
    assert producer.flush(BOUND_S) == 0


def read(servers: str, rack: str) -> int:
    """Return how many records a consumer in a rack reads; it asks for little at a time."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": rack,
            "client.rack": rack,
            "enable.auto.commit": False,
            "fetch.max.bytes": 100_000,
            "message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 100,
        }
    )
    consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
    found, deadline_s = 0, time.monotonic() + BOUND_S
    while found < COUNT and time.monotonic() < deadline_s:
        found += sum(one.error() is None for one in consumer.consume(100, timeout=1))
    consumer.close()
    return found


async def test_a_consumer_is_served_by_the_follower_in_its_rack(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    ports = {node: free_port() for node in (1, 2, 3)}
    own = {node: {"broker.rack": f"rack-{node}", "metrics.port": str(port)} for node, port in ports.items()}
    selector = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "auto.leader.rebalance.enable": "false",
    }
    with BrokerCluster(tmp_path, selector, of_broker=own) as cluster:
        async with Admin(cluster.bootstrap_servers) as admin:
            await admin.topics.create("orders", assignments={0: [LEADER, FOLLOWER]})
        fill(cluster.bootstrap_servers)

        assert read(cluster.bootstrap_servers, f"rack-{FOLLOWER}") == COUNT
        near = {node: sent_by(port) for node, port in ports.items()}
        assert read(cluster.bootstrap_servers, "rack-elsewhere") == COUNT
        far = {node: sent_by(port) - near[node] for node, port in ports.items()}

    shares = near[FOLLOWER] / sum(near.values()), far[FOLLOWER] / sum(far.values())
    record_property("figure", "from the follower {:.1%} of the bytes, {:.1%} to another rack".format(*shares))
    assert near[FOLLOWER] >= COUNT * SIZE
    assert near[LEADER] < COUNT * SIZE / 10
    assert far[LEADER] >= COUNT * SIZE
    assert far[FOLLOWER] == 0
