"""Pipelines on a standalone cluster of two workers: what outgrows one machine."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer
from ottla.protocol.topics import TopicPartition
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.pipelines import Pipeline
from peers.spark_cluster import SMALL, SparkCluster, declared_on
from peers.topics import Sent, Topics
from spark.topic_copying import arrived

RECORDS = 2_000

pytestmark = pytest.mark.timeout(900)


def test_a_pipeline_runs_on_both_workers(
    cluster: SparkCluster, broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, dead = topics.create(fresh("lines"), 4), topics.create(fresh("dead"))
    lines = [json.dumps({"n": number}) if number % 100 else "broken" for number in range(RECORDS)]
    topics.send(topic, [Sent(value=each.encode(), partition=at % 4) for at, each in enumerate(lines)])
    declared = tmp_path / "lines.toml"
    declared.write_text(
        f"""
kind = "logs"
name = "lines"
checkpoint = "state"
[source]
bootstrap_servers = "{broker.bootstrap_servers}"
topics = "{topic}"
max_records_per_batch = {RECORDS // 2}
[parse]
format = "json"
fields.n = "INT"
required = "n"
[lake]
path = "lake"
[dead_letters]
topic = "{dead}"
{declared_on(cluster)}
"""
    )

    pipeline = Pipeline(declared, tmp_path / "state")

    status = pipeline.once()

    assert status["queries"]["main"]["counts"] == {"good": RECORDS - RECORDS // 100, "dead": RECORDS // 100}
    table = pq.read_table(tmp_path / "lake")
    assert sorted(table.column("n").to_pylist()) == [number for number in range(RECORDS) if number % 100]
    assert cluster.workers_of_last_application() == 2
    cost = pipeline.output.splitlines()[-1]
    assert re.match(
        rf"cost: [\d.]+ s of CPU, [\d.]+ MB of records for {RECORDS:,} rows; per million", cost
    ), cost
    written = [file.name.partition("-")[0] for file in (tmp_path / "state" / "cost").iterdir()]
    assert Counter(written)["cpu"] == 3, "the Java of the driver and of two executors"
    assert Counter(written)["bytes"] >= 2


COPY = """
import json, sys, time

from pyspark import TaskContext
from pyspark.sql import SparkSession

master, settings, servers, source, targets, folder = json.loads(sys.argv[1])
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
cluster = {"kafka.bootstrap.servers": servers}
rows = spark.read.format("ottla").options(**cluster, subscribe=source).load()

def harmed(where):
    def pass_on(batches):
        task = TaskContext.get()
        first, partition = task.attemptNumber() == 0, task.partitionId()
        with open(f"{folder}/{where}-{partition}-{task.taskAttemptId()}", "w"):
            pass
        yield from batches
        if first and partition == 0:
            raise OSError("this attempt fails, and the task is tried again")
        if first and partition == 1:
            # This attempt hangs until Spark kills it, when a second one, with the number 1, has overtaken it.
            time.sleep(600)
    return rows.select("key", "value").mapInArrow(pass_on, "key BINARY, value BINARY")

for delivery, topic in targets.items():
    writer = harmed(delivery).write.format("ottla").mode("append").options(**cluster, topic=topic)
    writer.options(**{"delivery": delivery, "write.id": "copy"}).save()
harmed("lake").write.parquet(folder + "/lake")
spark.stop()
"""
SPECULATION = {
    "speculation": "true",
    "speculation.interval": "100ms",
    "speculation.multiplier": "1.1",
    "speculation.quantile": "0.5",
    "speculation.minTaskRuntime": "100ms",
    "task.maxFailures": "4",
    "python.task.killTimeout": "1s",
    # Small pieces, so that rows reach the topic before the attempt ends.
    "sql.execution.arrow.maxRecordsPerBatch": "20",
    "ui.enabled": "false",
}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftKafka]:
    """A broker of Apache Kafka."""
    if missing := missing_tools():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("kafka")
    with KraftKafka(folder, {"transaction.state.log.num.partitions": "8"}) as running:
        yield running


def test_tasks_that_fail_or_are_overtaken_count_once(
    cluster: SparkCluster, kafka: KraftKafka, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    with Topics(kafka.bootstrap_servers) as topics:
        source = topics.create(fresh("source"), 4)
        topics.send(source, [Sent(value=b"%1000d" % row, partition=row % 4) for row in range(RECORDS)])
        targets = {each: topics.create(fresh(each), 2) for each in ("exactly-once", "dedupe")}
    program = tmp_path / "program.py"
    program.write_text(COPY)
    servers = kafka.bootstrap_servers
    given = [cluster.url, {**SMALL, **SPECULATION}, servers, source, targets, str(tmp_path)]

    done = subprocess.run(
        [sys.executable, str(program), json.dumps(given)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    for where in (*targets, "lake"):
        assert len(list(tmp_path.glob(f"{where}-0-*"))) > 1, "the task that failed was tried again"
        assert len(list(tmp_path.glob(f"{where}-1-*"))) > 1, "a second attempt overtook the one that hung"
    once = {str(row): 1 for row in range(RECORDS)}
    committed = arrived(servers, targets["exactly-once"], 2)
    assert {value.strip(): count for value, count in committed.items()} == once
    lake = pq.read_table(tmp_path / "lake")["value"].to_pylist()
    assert Counter(map(_number, lake)) == once
    ids = asyncio.run(_ids(servers, targets["dedupe"]))
    assert sum(map(len, ids.values())) > RECORDS, "rows of the attempt that hung are there twice"
    assert {value: len(set(some)) for value, some in ids.items()} == once
    assert len({each for some in ids.values() for each in some}) == RECORDS


SLOW_STREAM = """
import json, sys, time

from pyspark import TaskContext
from pyspark.sql import SparkSession

sys.path.insert(0, sys.argv[2])
from peers.spark import with_patience

master, settings, servers, source, targets, folder = json.loads(sys.argv[1])
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
cluster = {"kafka.bootstrap.servers": servers}

def slow(where):
    def pass_on(batches):
        task = TaskContext.get()
        with open(f"{folder}/{where}-{task.partitionId()}-{task.taskAttemptId()}", "w"):
            pass
        for batch in batches:
            if task.partitionId() == 1:
                time.sleep(0.4)  # every attempt at it is slow, also a copy
            yield batch
    return pass_on

for delivery, topic in targets.items():
    reader = spark.readStream.format("ottla").options(**cluster, subscribe=source, startingOffsets="earliest")
    rows = reader.option("maxOffsetsPerTrigger", 1000).load().select("key", "value")
    rows = rows.mapInArrow(slow(delivery), "key BINARY, value BINARY")
    writer = rows.writeStream.format("ottla").options(**cluster, topic=topic, delivery=delivery)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{delivery}").trigger(availableNow=True)
    with_patience(lambda: writer.start().awaitTermination())
spark.stop()
"""


def test_slow_tasks_of_a_stream_that_are_copied_count_once(
    cluster: SparkCluster, kafka: KraftKafka, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    with Topics(kafka.bootstrap_servers) as topics:
        source = topics.create(fresh("source"), 4)
        topics.send(source, [Sent(value=b"%1000d" % row, partition=row % 4) for row in range(RECORDS)])
        deliveries = ("exactly-once", "dedupe", "at-least-once")
        targets = {each: topics.create(fresh(each), 2) for each in deliveries}
    program = tmp_path / "program.py"
    program.write_text(SLOW_STREAM)
    servers = kafka.bootstrap_servers
    # An attempt that is overtaken does not fail: with five machines, the failures of five copies end a query.
    settings = {**SMALL, **SPECULATION, "task.maxFailures": "1"}
    given = [cluster.url, settings, servers, source, targets, str(tmp_path)]

    done = subprocess.run(
        [sys.executable, str(program), json.dumps(given), str(Path(__file__).parents[1])],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    for delivery in targets:
        attempts = len(list(tmp_path.glob(f"{delivery}-1-*")))
        assert attempts > 2, "there are two batches, and a copy in one of them at least"
    once = {str(row): 1 for row in range(RECORDS)}
    committed = arrived(servers, targets["exactly-once"], 2)
    assert {value.strip(): count for value, count in committed.items()} == once
    ids = asyncio.run(_ids(servers, targets["dedupe"]))
    assert {value: len(set(some)) for value, some in ids.items()} == once
    assert len({each for some in ids.values() for each in some}) == RECORDS
    some = arrived(servers, targets["at-least-once"], 2)
    assert {value.strip() for value in some} == once.keys()


async def _ids(servers: str, topic: str) -> dict[str, list[tuple[bytes | None, ...]]]:
    """Return the ids of the rows with each value, in a topic of two partitions."""
    places = [TopicPartition(topic, number) for number in range(2)]
    found: dict[str, list[tuple[bytes | None, ...]]] = {}
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(places)
        for _ in range(sum((await consumer.end_offsets(places)).values())):
            record = await consumer.getone()
            id_of_row = tuple(value for name, value in record.headers if name.startswith("ottla-"))
            found.setdefault(_number(record.value), []).append(id_of_row)
    return found


def _number(value: bytes | None) -> str:
    """Return the number in a value, which is padded."""
    return (value or b"").decode().strip()
