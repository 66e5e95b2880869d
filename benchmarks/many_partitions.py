"""The cost of 1,000 replicated partitions: Ottla beside Apache Kafka 3.9, three brokers each.

Run `python benchmarks/many_partitions.py [--quick] [--only ottla]`; both are on one ZooKeeper. A topic
of 20 partitions is measured first, then one of 1,000 is created, and both are measured: single records of 100
bytes, each written when the one before is acknowledged, with acks=all and acks=1 in turn. CPU is that of one
broker, in the mean of the three: while nothing is written, as a share of one core, and for the creation. The
clusters are measured in turn, and the one that is not measured is idle.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer

from contenders import kafka_is_here, quiet, show, touch_free_memory
from ottla.admin import Admin
from ottla.client.cluster import NoSuchTopic
from replication import Cluster, clusters

_FEW: Final = ("few", 20)
_MANY: Final = ("many", 1_000)
_RECORD: Final = b"x" * 100
_BOUND_S: Final = 120.0
Figures = dict[str, float]


def latencies_ms(servers: str, topic: str, partitions: int, acks: str, records: int) -> list[float]:
    """Write single records, partition after partition; return how long each took to its acknowledgement."""
    settings = {"bootstrap.servers": servers, "acks": acks, "linger.ms": 0, "log_level": 0}
    producer, took_ms = Producer(settings), []

    def acknowledged(error: Any, _: Any) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not acknowledged: {error}")
        took_ms.append((time.perf_counter() - begun) * 1000)

    for number in range(records):
        begun = time.perf_counter()
        producer.produce(topic, _RECORD, partition=number % partitions, on_delivery=acknowledged)
        while len(took_ms) == number:
            assert producer.poll(_BOUND_S), "a record was not acknowledged in time"
    return took_ms[records // 5 :]  # before that, the client connects


async def _create(servers: str, topic: str, partitions: int) -> None:
    """Create a topic of three replicas; return once all of them are in sync."""
    async with Admin(servers) as admin, asyncio.timeout(_BOUND_S):
        await admin.topics.create(topic, partitions=partitions, replication_factor=3)
        in_sync = 0
        while in_sync < partitions:
            await asyncio.sleep(0.5)
            with suppress(NoSuchTopic):  # a broker that has not heard of it
                found = (await admin.topics.describe(topic)).partitions.values()
                in_sync = sum(len(partition.isr) == 3 for partition in found)


def _settled(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        quiet(broker)


def _idle_percent(cluster: Cluster, seconds: float) -> float:
    before = cluster.cpu_s()
    time.sleep(seconds)
    return (cluster.cpu_s() - before) / seconds * 100 / len(cluster.brokers)


def measure(
    cluster: Cluster, topics: list[tuple[str, int]], there_are: int, args: argparse.Namespace
) -> Figures:
    """Measure topics while there are so many partitions in the cluster."""
    figures = {f"{there_are}: idle % of a core": _idle_percent(cluster, args.idle_seconds)}
    for topic, partitions in topics:
        for acks in ("all", "1"):
            took_ms = latencies_ms(cluster.servers, topic, partitions, acks, args.records)
            name = f"{there_are}: {topic}, acks={acks}"
            figures[f"{name}, p50 ms"] = statistics.median(took_ms)
            figures[f"{name}, p99 ms"] = statistics.quantiles(took_ms, n=100)[98]
    return figures


def create_and_measure(cluster: Cluster, args: argparse.Namespace) -> Figures:
    """Measure a cluster with few partitions, then with many more beside them."""
    asyncio.run(_create(cluster.servers, *_FEW))
    latencies_ms(cluster.servers, *_FEW, "all", args.warm_records)  # a JVM compiles
    _settled(cluster)
    figures = measure(cluster, [_FEW], _FEW[1], args)
    name, partitions = _MANY[0], args.partitions
    before = cluster.cpu_s()
    asyncio.run(_create(cluster.servers, name, partitions))
    figures["creation, CPU s of a broker"] = (cluster.cpu_s() - before) / len(cluster.brokers)
    latencies_ms(cluster.servers, name, partitions, "all", args.warm_records)
    _settled(cluster)
    return figures | measure(cluster, [_FEW, (name, partitions)], _FEW[1] + partitions, args)


def main() -> None:
    """Measure both clusters and print their figures side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("ottla", "kafka"), help="measure one cluster")
    parser.add_argument("--partitions", type=int, default=_MANY[1])
    args = parser.parse_args()
    args.records, args.warm_records, args.idle_seconds = (300, 300, 10) if args.quick else (2_000, 2_000, 30)
    if not kafka_is_here():  # the coordinator is Apache's, too
        return
    with tempfile.TemporaryDirectory() as folder, clusters(Path(folder), args.only) as started:
        touch_free_memory()
        found = {cluster.name: create_and_measure(cluster, args) for cluster in started}
    rows = [
        (name, *(f"{figures[name]:.2f}" for figures in found.values())) for name in next(iter(found.values()))
    ]
    show(f"three replicas, {args.partitions} partitions", rows, ("", *found))


if __name__ == "__main__":
    main()
