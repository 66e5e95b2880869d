"""Segments on disk as Spark tables: rows a second, in turns with reading the same topic through its broker.

Both read the same records, those of closed segments, into `noop`, on Spark with two threads. The broker runs
all the time. Pairs of runs alternate in who is first; the figure is the median over rounds, and the ratio is
the median of ratios within a round. A first round warms both up and does not count.

    python benchmarks/spark_segments.py [--quick] [--rounds N] [--codec lz4] [--broker kafka]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import Contender, apache_kafka, kafka_is_here, ottla, show
from ottla.producer import SyncProducer
from ottla.producer.config import CompressionType
from peers.spark import missing_java, spark_session
from peers.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
COUNTS = {100: 4_000_000, 1000: 800_000}
GOAL = 2.0
_SETTINGS = {
    "log.segment.bytes": str(64 * 1024 * 1024),
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
_WAIT_S = 60


@dataclass(frozen=True)
class Reading:
    """A topic and the two ways to read its closed segments."""

    topic: str
    count: int
    ends: dict[str, int]

    def through_the_broker(self, spark: SparkSession, contender: Contender) -> DataFrame:
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", contender.bootstrap_servers)
        ends = json.dumps({self.topic: self.ends})
        return reader.option("subscribe", self.topic).option("endingOffsets", ends).load()

    def from_segments(self, spark: SparkSession, contender: Contender) -> DataFrame:
        reader = spark.read.format("ottla-log").option("topics", self.topic)
        return reader.load(str(contender.data_dir))


def fill(contender: Contender, topic: str, size: int, count: int, codec: CompressionType) -> Reading:
    """Write a topic; return what of it is in closed segments."""
    with Topics(contender.bootstrap_servers) as topics:
        topics.create(topic, PARTITIONS)
    values = [b"%08d" % number + b"v" * (size - 8) for number in range(1000)]
    with SyncProducer(
        contender.bootstrap_servers, compression_type=codec, linger_ms=5, batch_size=128 * 1024
    ) as producer:
        for partition in range(PARTITIONS):
            for _ in range(count // PARTITIONS // 1000):
                producer.send_many(topic, values, partition=partition)
            producer.flush()
    ends = {str(each): _closed(contender.data_dir / f"{topic}-{each}") for each in range(PARTITIONS)}
    return Reading(topic, sum(ends.values()), ends)


def _closed(folder: Path) -> int:
    return max(int(path.stem) for path in folder.glob("*.log"))


def until_noted(reading: Reading, spark: SparkSession, contender: Contender) -> None:
    """Wait until segments give all that the broker gives: it has to note first what is replicated."""
    deadline = time.monotonic() + _WAIT_S
    while (found := reading.from_segments(spark, contender).count()) != reading.count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"segments have {found} rows and not {reading.count}")
        time.sleep(0.5)


def seconds(table: Callable[[], DataFrame]) -> float:
    begun = time.perf_counter()
    table().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def measure(
    reading: Reading, spark: SparkSession, contender: Contender, rounds: int
) -> list[tuple[float, float]]:
    """Return rows a second, through the broker and from segments, for each round."""
    ways = (
        lambda: reading.through_the_broker(spark, contender),
        lambda: reading.from_segments(spark, contender),
    )
    found = []
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        took = {way: seconds(ways[way]) for way in order}
        if number:
            found.append((reading.count / took[0], reading.count / took[1]))
    return found


@contextmanager
def broker(name: str, folder: Path) -> Iterator[Contender]:
    with (apache_kafka if name == "kafka" else ottla)(folder, _SETTINGS) as running:
        yield running


def report(rates: dict[tuple[int, str], list[tuple[float, float]]]) -> bool:
    """Print the table; tell whether the goal is met in every case."""
    rows: list[tuple[str, ...]] = []
    met = True
    for (size, codec), rounds in rates.items():
        broker_rate, segment_rate = (statistics.median(each) for each in zip(*rounds, strict=True))
        ratio = statistics.median(segments / through for through, segments in rounds)
        met &= ratio >= GOAL
        rows.append(
            (f"{size} B, {codec}", f"{broker_rate / 1e3:,.0f}", f"{segment_rate / 1e3:,.0f}", f"{ratio:.2f}")
        )
    show(
        "Spark, local[2], into noop: thousand rows a second",
        rows,
        ("records", "through the broker", "from segments", "ratio"),
    )
    print(f"\n  Goal, at least {GOAL:g} times the rate of the broker: {'met' if met else 'NOT met'}")
    return met


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codec", action="append", choices=("none", "gzip", "snappy", "lz4", "zstd"))
    parser.add_argument("--broker", choices=("ottla", "kafka"), default="ottla")
    options = parser.parse_args(arguments)
    if missing := missing_java():
        print(f"  {missing}")
        return 0
    if options.broker == "kafka" and not kafka_is_here():
        return 0
    rounds = 2 if options.quick else options.rounds
    rates = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with spark_session(folder) as spark, broker(options.broker, folder) as contender:
            for codec in options.codec or ("none", "lz4"):
                for size, count in COUNTS.items():
                    count = count // 10 if options.quick else count
                    reading = fill(contender, f"rows-{size}-{codec}", size, count, codec)
                    until_noted(reading, spark, contender)
                    rates[size, codec] = measure(reading, spark, contender, rounds)
    report(rates)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
