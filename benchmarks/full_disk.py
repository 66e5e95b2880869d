"""A full disk in a cluster of three brokers: the longest time without an acknowledged record, by partition.

Run `python benchmarks/full_disk.py` as root, with Java and Maven for Apache Kafka 3.9. The log directory of
broker 1 is a tmpfs of 64 MiB, which is filled up amid a paced load with acks=all and min.insync.replicas=2,
and emptied a minute later. A broker that ends by itself is not started again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.small_disk import SmallDisk, small_disk

KINDS: Final = ("ottla", "kafka-3.9")
TOPIC: Final = "load"
REPLICAS: Final = [[1, 2, 3], [1, 3, 2], [2, 3, 1], [2, 1, 3], [3, 1, 2], [3, 2, 1]]
"""Two partitions for each broker to lead; broker 1 has the full disk."""
EVERY_S: Final = 0.02
VALUE: Final = bytes(1_000)
_DISK_MIB: Final = 64
_BOUND_S: Final = 120.0
_BACK_S: Final = 40.0
_SETTINGS: Final = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "log.segment.bytes": "1048576",
    "auto.leader.rebalance.enable": "false",
}


@dataclass(slots=True)
class Acknowledgements:
    """The times of a partition's acknowledged records, and how many records were given up."""

    acked_s: list[float] = field(default_factory=list)
    failed: int = 0

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two acknowledgements in a stretch of time."""
        times = [since_s, *(at_s for at_s in self.acked_s if since_s < at_s < until_s), until_s]
        return max(after - before for before, after in pairwise(times))


class Load:
    """A record for each partition every 20 ms, with acks=all, repeated for as long as it takes.

    Metadata are asked for each second: the client does not wait long for a leader that has moved.
    """

    def __init__(self, servers: str) -> None:
        self.of_partition = [Acknowledgements() for _ in REPLICAS]
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "acks": "all",
                "linger.ms": 0,
                "topic.metadata.refresh.interval.ms": 1_000,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
            }
        )

    def run(self, for_s: float) -> None:
        """Send for so long."""
        begun_s = time.monotonic()
        for number in range(int(for_s / EVERY_S)):
            for partition in range(len(REPLICAS)):
                self._producer.produce(TOPIC, VALUE, partition=partition, on_delivery=self._ended)
            while (left_s := begun_s + (number + 1) * EVERY_S - time.monotonic()) > 0:
                self._producer.poll(left_s)
            self._producer.poll(0)

    def finish(self) -> int:
        """Wait for what is under way; return the number of records without an answer."""
        return int(self._producer.flush(_BOUND_S))

    def _ended(self, error: KafkaError | None, message: Message) -> None:
        partition = self.of_partition[message.partition() or 0]
        if error is None:
            partition.acked_s.append(time.monotonic())
        else:
            partition.failed += 1


@contextmanager
def cluster(kind: str, folder: Path, disk: SmallDisk) -> Iterator[str]:
    """Three brokers with the defaults of their kind; yields the addresses of those with room."""
    data = {"log.dirs": str(disk.folder / "data")}
    with ExitStack() as stack:
        if kind == "ottla":
            ours = stack.enter_context(BrokerCluster(folder, _SETTINGS, of_broker={1: data}))
            yield ",".join(ours.brokers[node].bootstrap_servers for node in (2, 3))
            return
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        brokers = []
        for node in (1, 2, 3):
            settings = {**_SETTINGS, "broker.id": str(node), **(data if node == 1 else {})}
            apache = ApacheKafka(folder / str(node), settings, zookeeper=zookeeper, heap="384m")
            brokers.append(stack.enter_context(apache))
        yield ",".join(broker.bootstrap_servers for broker in brokers[1:])


def states(servers: str) -> Mapping[int, tuple[int, list[int]]]:
    """Return the leader and the ISR of each partition."""
    admin = AdminClient({"bootstrap.servers": servers})
    found = admin.list_topics(TOPIC, timeout=_BOUND_S).topics[TOPIC]
    return {number: (state.leader, sorted(state.isrs)) for number, state in found.partitions.items()}


def until_in_sync(servers: str, load: Load | None = None) -> float | None:
    """Wait until all replicas are in sync, under load; return how long it took, None if it took too long."""
    begun_s = time.monotonic()
    while any(len(isr) < len(REPLICAS[0]) for _, isr in states(servers).values()):
        if time.monotonic() - begun_s > _BACK_S:
            return None
        if load is None:
            time.sleep(0.1)
        else:
            load.run(0.5)
    return time.monotonic() - begun_s


def measure(kind: str, full_s: float) -> None:
    """Run the load around a full disk, and print the longest gap of each partition."""
    with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk", _DISK_MIB) as disk:
        with cluster(kind, Path(folder), disk) as servers:
            new = NewTopic(TOPIC, num_partitions=len(REPLICAS), replica_assignment=REPLICAS)
            admin = AdminClient({"bootstrap.servers": servers})
            admin.create_topics([new])[TOPIC].result(_BOUND_S)
            until_in_sync(servers)
            load = Load(servers)
            load.run(10)
            filled_s = time.monotonic()
            disk.fill()
            load.run(full_s)
            during = states(servers)
            freed_s = time.monotonic()
            disk.free()
            back_s = until_in_sync(servers, load)
            load.run(10)
            ended_s = time.monotonic()
            unanswered = load.finish()
        print(f"{kind}: {unanswered} records without an answer", flush=True)
        for number, partition in enumerate(load.of_partition):
            leader, isr = during[number]
            before_s, during_s, after_s = (
                partition.longest_gap_s(since_s, until_s)
                for since_s, until_s in (
                    (filled_s - 8, filled_s), (filled_s, freed_s), (freed_s, ended_s)
                )
            )  # fmt: skip
            print(
                f"  partition {number}: led by {REPLICAS[number][0]}, then by {leader} with the ISR {isr}; "
                f"{len(partition.acked_s)} acknowledged, {partition.failed} failed; longest gap "
                f"{before_s:.2f} s before, {during_s:.2f} s while full, {after_s:.2f} s after",
                flush=True,
            )
        came_back = "not back in sync" if back_s is None else f"in sync {back_s:.1f} s"
        print(f"  all replicas: {came_back} after the disk was emptied", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="instead of both")
    parser.add_argument("--full-s", type=float, default=60.0, help="how long the disk is full")
    given = parser.parse_args()
    for kind in given.kind or KINDS:
        measure(kind, given.full_s)


if __name__ == "__main__":
    main()
