"""CPU per MB of acks=all, with three replicas on three brokers.

librdkafka writes records of 1 KB in batches of up to 100 KB, then reads them. The unit is the brokers' CPU
time for each MB that a client wrote or read: it holds on a busy machine too, and bounds what one process
carries.

python benchmarks/replicated_broker.py [--seconds 10]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from contenders import show
from controller_failover import cpu_s
from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster

TOPIC = "replicated"
PARTITIONS = 12
RECORD = b"x" * 1_000
IN_FLIGHT = 50_000


def write(servers: str, seconds: float) -> int:
    """Write for a time; return how many records were acknowledged by all replicas."""
    acknowledged = 0

    def delivered(error: Any, _: Any) -> None:
        nonlocal acknowledged
        if error is not None:
            raise RuntimeError(f"a record was not acknowledged: {error}")
        acknowledged += 1

    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 50,
         "batch.size": 100_000, "queue.buffering.max.messages": IN_FLIGHT, "log_level": 0}
    )  # fmt: skip
    number, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            producer.produce(TOPIC, RECORD, partition=number // 100 % PARTITIONS, on_delivery=delivered)
            number += 1
        except BufferError:
            producer.poll(0.01)
        if number % 100 == 0:
            producer.poll(0)
    producer.flush(60)
    return acknowledged


def read(servers: str, records: int) -> int:
    """Read records from the start of all partitions."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "size", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in range(PARTITIONS)])
    found, until = 0, time.monotonic() + 120
    while found < records and time.monotonic() < until:
        found += len(consumer.consume(10_000, timeout=1))
    consumer.close()
    return found


async def create(servers: str) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create(
            TOPIC, partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": "2"}
        )


def measured(name: str, cluster: BrokerCluster, work: Callable[[], int]) -> tuple[str, ...]:
    """Return a row: MB/s, and the CPU time of all brokers for each MB."""
    pids = [broker.pid for broker in cluster.brokers.values()]
    before, since = sum(map(cpu_s, pids)), time.monotonic()
    mb = work() * len(RECORD) / 1e6
    took = time.monotonic() - since
    cpu_ms = (sum(map(cpu_s, pids)) - before) * 1000
    return name, f"{mb:,.0f}", f"{mb / took:,.0f}", f"{cpu_ms / mb:.2f}", f"{1000 / (cpu_ms / mb):,.0f}"


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, BrokerCluster(Path(folder)) as cluster:
        servers = cluster.bootstrap_servers
        asyncio.run(create(servers))
        write(servers, 1.0)  # warms caches
        written: list[int] = []

        def writing() -> int:
            written.append(write(servers, options.seconds))
            return written[0]

        rows = [measured("written, acks=all, 3 replicas", cluster, writing)]
        rows.append(measured("read", cluster, lambda: read(servers, written[0])))
    header = ("", "MB", "MB/s", "CPU ms/MB, all brokers", "MB/s for one CPU")
    show("three brokers, 12 partitions", rows, header)


if __name__ == "__main__":
    main()
