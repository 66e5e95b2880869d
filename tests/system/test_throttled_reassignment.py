"""A reassignment between three of our brokers takes the time that its throttle asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from ottla.broker.testing import BrokerCluster
from ottla.client.cli import main

pytestmark = pytest.mark.timeout(180)

BOUND_S = 90
SIZE, RATE = 16_000_000, 2_000_000


def ottla(cluster: BrokerCluster, *arguments: str) -> Result:
    environment = {"OTTLA_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    return CliRunner().invoke(main, arguments, env=environment)


def plan_of(path: Path, *replicas: int) -> str:
    moves = [{"topic": "orders", "partition": 0, "replicas": list(replicas)}]
    path.write_text(json.dumps({"version": 1, "partitions": moves}))
    return str(path)


def fill(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "compression.type": "none", "linger.ms": 5})
    for _ in range(SIZE // 1_000):
        producer.produce("orders", b"x" * 1_000)
        producer.poll(0)
    assert producer.flush(BOUND_S) == 0


def test_a_throttled_reassignment_takes_its_time_and_verify_ends_the_throttle(
    ottla_cluster: BrokerCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    servers = ottla_cluster.bootstrap_servers
    made = ottla(ottla_cluster, "topic", "create", "orders", "--partitions", "1", "--replication-factor", "1")
    assert made.exit_code == 0, made.output
    fill(servers)
    described = ottla(ottla_cluster, "topic", "describe", "orders", "--json").stdout
    leader = json.loads(described)["partitions"][0]["leader"]
    plan = plan_of(tmp_path / "plan.json", leader % 3 + 1)

    begun_s = time.monotonic()
    done = ottla(ottla_cluster, "reassign", "execute", plan, "--throttle", str(RATE))
    assert done.exit_code == 0, done.output
    verified = [ottla(ottla_cluster, "reassign", "verify", plan)]
    while verified[-1].exit_code != 0:
        assert time.monotonic() - begun_s < BOUND_S, verified[-1].output
        time.sleep(0.2)
        verified.append(ottla(ottla_cluster, "reassign", "verify", plan))
    took_s = time.monotonic() - begun_s

    record_property("figure", f"{took_s:.2f} s for what takes {SIZE / RATE:.2f} s at the rate")
    assert took_s >= 0.9 * SIZE / RATE
    assert "Removed the throttles of topic orders, broker " in "".join(each.output for each in verified)
    for kind, name in (("--topic", "orders"), ("--broker", "1"), ("--broker", "2"), ("--broker", "3")):
        left = ottla(ottla_cluster, "config", "describe", kind, name, "--changed").output
        assert "throttled" not in left
