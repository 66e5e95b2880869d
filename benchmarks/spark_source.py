"""Topics in Spark: `format("ottla")` in turns with Spark's own Kafka connector, on the same broker.

Reads topics into `noop` and into Parquet, writes rows into topics, and times micro-batches of a few rows.
Both run with default settings, and the JVM compiles as usual. The order alternates in each round; a first
round warms both up and does not count. Rates are medians over rounds, and a ratio is the median of the ratios
within rounds. The broker runs on the same cores; rows per CPU second exclude it, and are more reliable on a
shared machine.

python benchmarks/spark_source.py [--quick] [--rounds N] [--cores N] [--size N] [--only read ...]

Spark's connector comes from Maven; without `mvn` only our own rates are shown.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contenders import Contender, kafka_is_here, ottla, show
from figures import Figure, figure, keep
from peers.maven import spark_connector
from peers.spark import missing_java, spark_session
from peers.topics import Sent, Topics
from spark_pairs import COUNTS, PARTITIONS, Pair, fill, in_turns, rates

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = ("read", "parquet", "write", "trigger")
ROWS_OF_A_BATCH = 50
BATCHES = 30
GOAL_TRIGGER_MS = 100
_SETTINGS = {"log.segment.bytes": str(256 * 1024 * 1024)}


@dataclass(frozen=True)
class Bench:
    """Spark, a broker, and the operations to measure."""

    spark: SparkSession
    contender: Contender
    folder: Path
    rounds: int
    formats: tuple[str, str]
    """Ours is the second."""

    @property
    def servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.contender.bootstrap_servers}

    def table(self, source: str, topic: str) -> DataFrame:
        return self.spark.read.format(source).options(**self.servers, subscribe=topic).load()

    def both(self, work: Callable[[str], object]) -> list[Pair]:
        theirs, ours = self.formats
        return in_turns(self.contender, lambda: work(theirs), lambda: work(ours), self.rounds)

    def read(self, topic: str) -> list[Pair]:
        return self.both(
            lambda source: self.table(source, topic).write.format("noop").mode("overwrite").save()
        )

    def parquet(self, topic: str) -> list[Pair]:
        return self.both(
            lambda source: self.table(source, topic).write.mode("overwrite").parquet(
                str(self.folder / f"lake-{source}")
            )
        )  # fmt: skip

    def write(self, size: int, count: int) -> list[Pair]:
        """Write rows that are already in memory, so that nothing else is measured."""
        value = f"CAST(concat(lpad(id % 1000, 8, '0'), repeat('v', {size - 8})) AS BINARY) AS value"
        rows = self.spark.range(0, count, 1, PARTITIONS).selectExpr(value).cache()
        rows.count()
        target = f"written-{size}"
        with Topics(self.contender.bootstrap_servers) as topics:
            topics.create(target, PARTITIONS, retention_bytes=str(512 * 1024 * 1024))

        def work(sink: str) -> None:
            rows.write.format(sink).mode("append").options(**self.servers, topic=target).save()

        try:
            return self.both(work)
        finally:
            rows.unpersist()

    def trigger(self, source: str) -> tuple[float, float]:
        """Return the duration of a small micro-batch, and the time from its rows to its end (medians, ms)."""
        name = f"trigger-{source}"
        place = self.folder / f"checkpoint-{source}"
        with Topics(self.contender.bootstrap_servers) as topics:
            topics.create(name, PARTITIONS)
            reader = self.spark.readStream.format(source).options(**self.servers, subscribe=name)
            writer = reader.load().writeStream.format("noop").option("checkpointLocation", str(place))
            query = writer.trigger(processingTime="0 seconds").start()
            try:
                query.processAllAvailable()
                waits = [self._batch(query, topics, name) for _ in range(BATCHES)]
                done = [each for each in query.recentProgress if each["numInputRows"]]
            finally:
                query.stop()
        took = [float(each["durationMs"]["triggerExecution"]) for each in done]
        # The first ones warm up.
        return statistics.median(took[len(took) // 3 :]), statistics.median(waits[BATCHES // 3 :])

    def _batch(self, query: Any, topics: Topics, name: str) -> float:
        topics.send(name, [Sent(value=b"row", partition=row % PARTITIONS) for row in range(ROWS_OF_A_BATCH)])
        begun = time.perf_counter()
        query.processAllAvailable()
        return (time.perf_counter() - begun) * 1_000


def figures_of(what: str, count: int, pairs: list[Pair]) -> list[Figure]:
    """Return the rates of both data sources; those of ours, the second of a pair, are the first."""
    title = "Spark, whole jobs on one machine"
    subjects = ((1, "ottla"), (0, "Spark's Kafka connector"))
    by_time = [
        figure(
            title, what, "rows/s", subject, [pair[index] for pair in pairs], lambda took: count / took.seconds
        )
        for index, subject in subjects
    ]
    by_cpu = [
        figure(
            title, f"{what}, for a second of CPU", "rows", subject, [pair[index] for pair in pairs],
            lambda took: count / took.cpu_seconds,
        )
        for index, subject in subjects
    ]  # fmt: skip
    return by_time + by_cpu


def line(what: str, count: int, pairs: list[Pair]) -> tuple[str, ...]:
    keep(figures_of(what, count, pairs))
    cells = [what]
    for spent in ("seconds", "cpu_seconds"):
        theirs, ours, ratio = rates(count, pairs, spent)
        cells += [f"{theirs / 1e3:,.0f}", f"{ours / 1e3:,.0f}", f"{ratio:.2f}"]
    print(f"  {what}: {cells[1]} and {cells[2]}", flush=True)
    return tuple(cells)


def rows_per_second(bench: Bench, parts: list[str], sizes: dict[int, int]) -> None:
    """Print the table of rates."""
    lines = []
    for size, count in sizes.items():
        topic = f"rows-{size}"
        if {"read", "parquet"} & set(parts):
            fill(bench.contender, topic, size, count, "none")
        if "read" in parts:
            lines.append(line(f"topic to noop, {size} B", count, bench.read(topic)))
        if "parquet" in parts:
            lines.append(line(f"topic to Parquet, {size} B", count, bench.parquet(topic)))
            for source in bench.formats:
                shutil.rmtree(bench.folder / f"lake-{source}", ignore_errors=True)
        if "write" in parts:
            lines.append(line(f"rows to topic, {size} B", count // 4, bench.write(size, count // 4)))
    if lines:
        columns = ("", *bench.formats, "ratio", *(f"{each}, CPU" for each in bench.formats), "ratio")
        show("Spark, thousand rows a second, and for each second of a processor", lines, columns)


def triggers(bench: Bench) -> None:
    """Print the durations of a small micro-batch."""
    found = {source: bench.trigger(source) for source in dict.fromkeys(bench.formats)}
    names = ("the batch itself", "from rows sent to batch done")
    lines = [
        (name, *(f"{found[source][index]:,.0f}" for source in bench.formats))
        for index, name in enumerate(names)
    ]
    show(f"Micro-batches of {ROWS_OF_A_BATCH} rows into noop, ms (medians)", lines, ("", *bench.formats))
    theirs, ours = (found[source][0] for source in bench.formats)
    said = "met" if ours - theirs <= GOAL_TRIGGER_MS else "NOT met"
    print(f"\n  Goal, no more than the connector's and {GOAL_TRIGGER_MS} ms: {said}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the records, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--size", type=int, action="append", choices=tuple(COUNTS))
    parser.add_argument("--only", action="append", choices=PARTS)
    options = parser.parse_args(arguments)
    if missing := missing_java():
        print(f"  {missing}")
        return 0
    settings = {"spark.master": f"local[{options.cores}]", "spark.driver.extraJavaOptions": ""}
    formats = ("ottla", "ottla")
    if kafka_is_here():
        settings["spark.jars"] = spark_connector().replace(":", ",")
        formats = ("kafka", "ottla")
    parts = options.only or list(PARTS)
    sizes = {size: COUNTS[size] // (10 if options.quick else 1) for size in options.size or COUNTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with spark_session(folder, settings) as spark, ottla(folder, _SETTINGS) as contender:
            rounds = 2 if options.quick else options.rounds
            bench = Bench(spark, contender, folder, rounds, formats)
            rows_per_second(bench, parts, sizes)
            if "trigger" in parts:
                triggers(bench)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
