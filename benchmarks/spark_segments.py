"""Segments on disk as Spark tables: rows per second, in turns with reads through the broker.

Both read the same records, those of closed segments, into `noop`, on Spark with two threads. The broker runs
all the time. The order within pairs of runs alternates; the figure is the median over rounds, and the ratio
is the median of ratios within a round. A first round warms both up and does not count.

python benchmarks/spark_segments.py [--quick] [--rounds N] [--codec lz4] [--broker kafka]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import Contender, apache_kafka, kafka_is_here, ottla, show
from ottla.producer.config import CompressionType
from peers.spark import missing_java, spark_session
from spark_pairs import COUNTS, PARTITIONS, Pair, fill, in_turns, rates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOAL = 2.0
_SETTINGS = {
    "log.segment.bytes": str(16 * 1024 * 1024),
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


def written(contender: Contender, topic: str, size: int, count: int, codec: CompressionType) -> Reading:
    """Write a topic; return the part of it in closed segments."""
    fill(contender, topic, size, count, codec)
    ends = {str(each): _closed(contender.data_dir / f"{topic}-{each}") for each in range(PARTITIONS)}
    return Reading(topic, sum(ends.values()), ends)


def _closed(folder: Path) -> int:
    last = max(int(path.stem) for path in folder.glob("*.log"))
    if not last:
        raise RuntimeError(f"no segment of {folder.name} is closed: write more records")
    return last


def until_noted(reading: Reading, spark: SparkSession, contender: Contender) -> None:
    """Wait until segments yield the broker's records: it has to checkpoint its high watermark first."""
    deadline = time.monotonic() + _WAIT_S
    while (found := reading.from_segments(spark, contender).count()) != reading.count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"segments have {found} rows and not {reading.count}")
        time.sleep(0.5)


def measure(reading: Reading, spark: SparkSession, contender: Contender, rounds: int) -> list[Pair]:
    """Return the seconds through the broker and from segments, in each round."""
    return in_turns(
        contender,
        lambda: into_noop(reading.through_the_broker(spark, contender)),
        lambda: into_noop(reading.from_segments(spark, contender)),
        rounds,
    )


def into_noop(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


@contextmanager
def broker(name: str, folder: Path, *, quick: bool) -> Iterator[Contender]:
    # A tenth of the records has to fill segments, too, because only closed ones are read.
    settings = _SETTINGS | ({"log.segment.bytes": str(1024 * 1024)} if quick else {})
    with (apache_kafka if name == "kafka" else ottla)(folder, settings) as running:
        yield running


def report(found: dict[tuple[int, str], tuple[int, list[Pair]]]) -> bool:
    """Print the table; return whether the goal is met in every case."""
    rows: list[tuple[str, ...]] = []
    met = True
    for (size, codec), (count, pairs) in found.items():
        through, segments, ratio = rates(count, pairs)
        met &= ratio >= GOAL
        rows.append((f"{size} B, {codec}", f"{through / 1e3:,.0f}", f"{segments / 1e3:,.0f}", f"{ratio:.2f}"))
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
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened = broker(options.broker, folder, quick=options.quick)
        with spark_session(folder) as spark, opened as contender:
            for codec in options.codec or ("none", "lz4"):
                for size, count in COUNTS.items():
                    count = count // 10 if options.quick else count
                    reading = written(contender, f"rows-{size}-{codec}", size, count, codec)
                    until_noted(reading, spark, contender)
                    found[size, codec] = reading.count, measure(reading, spark, contender, rounds)
    report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
