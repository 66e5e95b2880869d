"""Replication to three brokers, and a follower's catch-up: Ottla beside Apache Kafka 3.9, on one ZooKeeper.

Run `python benchmarks/replication.py [--quick]`. Rounds alternate between the clusters, and each begins with
the other one; topics are deleted behind a measurement, so that both write to memory that was used before.
Throughput and latency are those of confluent-kafka with acks=all, on a topic of six partitions with three
replicas; latency at a tenth of the throughput, at most 2,000 records of 1,000 bytes per second. In the
catch-up, a topic on one broker gets a second replica. CPU is that of all three brokers. Round 0 is not
counted: a JVM compiles in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from contenders import Contender, kafka_is_here, show, touch_free_memory
from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.protocol.topics import TopicPartition
from paced_producer import latencies_ms
from peers.apache_kafka import ApacheKafka, ZooKeeper

_BOUND_S: Final = 600.0
_RECORD: Final = b"x" * 1_000
_NODES: Final = (1, 2, 3)
_FILE_DELETE_DELAY_S: Final = 1.0
_SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "3",
    "controlled.shutdown.enable": "false",
    "log.segment.delete.delay.ms": str(int(_FILE_DELETE_DELAY_S * 1000)),
}
_BEST_IS_MORE: Final = ("MB/s", "catch-up MB/s")
Figures = dict[str, float]


@dataclass(frozen=True)
class Cluster:
    """Three running brokers of one kind."""

    name: str
    brokers: list[Contender]

    @property
    def servers(self) -> str:
        return ",".join(one.bootstrap_servers for one in self.brokers)

    def cpu_s(self) -> float:
        return sum(one.cpu_seconds() for one in self.brokers)


def _settings(zookeeper: ZooKeeper, kind: str, node: int) -> Mapping[str, str]:
    address = f"{zookeeper.connect_string}/{kind}"
    return {**_SETTINGS, "broker.id": str(node), "zookeeper.connect": address}


@contextmanager
def clusters(folder: Path, only: str | None = None) -> Iterator[list[Cluster]]:
    """Start both clusters, or `only` "ottla" or "kafka", on one ZooKeeper."""
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        ours = [BrokerProcess(folder / f"o{node}", _settings(zookeeper, "ottla", node)) for node in _NODES]
        theirs = [
            ApacheKafka(
                folder / f"k{node}", _settings(zookeeper, "kafka", node), zookeeper=zookeeper, heap="512m"
            )
            for node in _NODES
        ]
        kinds: dict[str, list[BrokerProcess] | list[ApacheKafka]] = {"ottla": ours, "kafka 3.9": theirs}
        started = {name: brokers for name, brokers in kinds.items() if name.startswith(only or "")}
        with ThreadPoolExecutor(3) as pool:
            for brokers in started.values():
                list(pool.map(stack.enter_context, brokers))
        yield [
            Cluster(name, [Contender("", one.bootstrap_servers, one.pid, one.data_dir) for one in brokers])
            for name, brokers in started.items()
        ]


def produce(servers: str, topic: str, megabytes: int) -> float:
    """Write records of 1,000 bytes as fast as they are acknowledged; return MB/s."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 5})
    begun = time.perf_counter()
    for _ in range(megabytes * 1_000):
        while True:
            try:
                producer.produce(topic, _RECORD)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(_BOUND_S) == 0
    return megabytes / (time.perf_counter() - begun)


def p99_ms(servers: str, topic: str, per_s: float, seconds: float) -> float:
    """Write at a fixed rate; return the 99th percentile from the call to the acknowledgement."""
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    took_ms = latencies_ms(producer, topic, _RECORD, per_s, lambda number: number < per_s * seconds)
    return statistics.quantiles(took_ms, n=100)[98]


async def _create(servers: str, topic: str, assignments: Mapping[int, list[int]]) -> None:
    async with Admin(servers) as admin:
        await admin.topics.create(topic, assignments=assignments)


async def _delete(servers: str, *topics: str) -> None:
    async with Admin(servers) as admin:
        for topic in topics:
            await admin.topics.delete(topic)
    await asyncio.sleep(2 * _FILE_DELETE_DELAY_S)


async def _catch_up_s(servers: str, topic: str) -> float:
    async with Admin(servers) as admin, asyncio.timeout(_BOUND_S):
        begun = time.perf_counter()
        await admin.partitions.reassign({TopicPartition(topic, 0): [1, 2]})
        while True:
            found = (await admin.topics.describe(topic)).partitions[0]
            if sorted(found.isr) == [1, 2]:
                return time.perf_counter() - begun
            await asyncio.sleep(0.02)


def measure(cluster: Cluster, number: int, args: argparse.Namespace) -> Figures:
    """One round on one cluster."""
    topic, copied = f"replicated-{number}", f"copied-{number}"
    spread = {one: [(one + step) % 3 + 1 for step in range(3)] for one in range(6)}
    asyncio.run(_create(cluster.servers, topic, spread))
    produce(cluster.servers, topic, 5)  # connections and leaders are there now
    before = cluster.cpu_s()
    rate = produce(cluster.servers, topic, args.megabytes)
    cpu_ms = (cluster.cpu_s() - before) * 1000 / args.megabytes
    p99 = p99_ms(cluster.servers, topic, min(2_000, rate * 100), args.seconds)
    asyncio.run(_create(cluster.servers, copied, {0: [1]}))
    produce(cluster.servers, copied, args.catch_up)
    before = cluster.cpu_s()
    took_s = asyncio.run(_catch_up_s(cluster.servers, copied))
    cpu_copied_s = cluster.cpu_s() - before
    asyncio.run(_delete(cluster.servers, topic, copied))
    return {
        "MB/s": rate,
        "p99 ms": p99,
        "CPU ms/MB": cpu_ms,
        "catch-up MB/s": args.catch_up / took_s,
        "catch-up CPU ms/MB": cpu_copied_s * 1000 / args.catch_up,
    }


def report(rounds: list[list[Figures]]) -> None:
    """Print medians, and the median of the ratios of each round: above 1 is better than Kafka."""
    rows = []
    for name in rounds[0][0]:
        ours, theirs = ([one[side][name] for one in rounds] for side in (0, 1))
        pairs = zip(ours, theirs, strict=True)
        ratios = [(a / b if name in _BEST_IS_MORE else b / a) if a and b else 1.0 for a, b in pairs]
        figures = (statistics.median(each) for each in (ours, theirs, ratios))
        rows.append((name, *(f"{one:.2f}" for one in figures)))
    show("three replicas, acks=all", rows, ("", "ottla", "kafka 3.9", "ahead by"))


def main() -> None:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.megabytes, args.seconds, args.catch_up = (50, 3.0, 200) if args.quick else (500, 10.0, 1_000)
    if not kafka_is_here():
        return
    with tempfile.TemporaryDirectory() as folder, clusters(Path(folder)) as both:
        touch_free_memory()
        rounds: list[list[Figures]] = []
        for number in range(2 if args.quick else 6):  # the first one warms up, a JVM compiles
            found: dict[str, Figures] = {}
            for one in both[:: -1 if number % 2 else 1]:
                figures = found[one.name] = measure(one, number, args)
                shown = {name: round(value, 2) for name, value in figures.items()}
                print(f"round {number}: {one.name}: {shown}", flush=True)
            rounds.append([found[one.name] for one in both])
        report(rounds[1:])


if __name__ == "__main__":
    main()
