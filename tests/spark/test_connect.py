"""The sources and the sink through Spark Connect, whose tasks run on two workers of a standalone cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess, free_port
from peers.spark_cluster import SparkCluster, connect_server
from peers.topics import Topics

pytest.importorskip("grpc", reason="Spark Connect needs pip install 'pyspark[connect]'")

TESTS = Path(__file__).parents[1]

PROGRAM = """
import json, sys, tempfile

from pyspark.sql import SparkSession

sys.path.insert(0, {tests!r})
from peers.spark import with_patience

server, servers, source, target = sys.argv[1:]
spark = SparkSession.builder.remote(server).getOrCreate()
assert type(spark).__module__.startswith("pyspark.sql.connect")
cluster = {"kafka.bootstrap.servers": servers}

table = spark.read.format("ottla").options(**cluster, subscribe=source).load()
counts = [table.count(), table.where("partition = 1").count(), table.count()]

rows = table.selectExpr("key", "concat('table ', CAST(value AS STRING)) AS value")
rows.write.format("ottla").mode("append").options(**cluster, topic=target).save()

reader = spark.readStream.format("ottla").options(**cluster, subscribe=source)
stream = reader.option("startingOffsets", "earliest").load()
checkpoint = tempfile.mkdtemp()
values = stream.selectExpr("key", "concat('stream ', CAST(value AS STRING)) AS value")

def copy():
    writer = values.writeStream.format("ottla").options(**cluster, topic=target)
    writer = writer.option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()

with_patience(copy)

def failing(batches):
    yield from batches
    raise KeyError("no price in order 17")

def refused(run):
    try:
        run()
    except Exception as error:
        return str(error)

missing = spark.read.format("ottla").options(**cluster, subscribe="missing").load()
mine = table.select("value").mapInArrow(failing, "value BINARY")
large = table.selectExpr("repeat('x', 3000000) AS value").write.format("ottla").mode("append")
errors = [
    refused(missing.count), refused(mine.count),
    refused(large.options(**cluster, topic=target).save),
]

found = spark.read.format("ottla").options(**cluster, subscribe=target).load()
values = [row[0] for row in found.selectExpr("CAST(value AS STRING)").collect()]
print(json.dumps({"counts": counts, "values": sorted(values), "errors": errors}))
spark.stop()
"""


@pytest.mark.timeout(900)
def test_tables_and_streams_are_read_and_written_through_connect(
    cluster: SparkCluster, broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:  # fmt: skip
    source, target = topics.create(fresh("source"), 2), topics.create(fresh("target"))
    topics.fill(source, {0: 3, 1: 2})
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("{tests!r}", repr(str(TESTS))))

    with connect_server(cluster, tmp_path / "server", free_port()) as server:
        done = subprocess.run(
            [sys.executable, str(program), server, broker.bootstrap_servers, source, target],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    sent = ["0-0", "0-1", "0-2", "1-0", "1-1"]
    assert found["counts"] == [5, 2, 5]
    assert found["values"] == sorted(f"{how} {each}" for how in ("stream", "table") for each in sent)
    assert cluster.workers_of_last_application() == 2
    for error, words in zip(found["errors"], FIRST_WORDS, strict=True):
        assert re.search(words, error), error


FIRST_WORDS = (
    r"\[PYTHON_DATA_SOURCE_ERROR\][^:\n]*: (ottla\.[\w.]+: )?topic 'missing' does not exist",
    r"\[PYTHON_EXCEPTION\] An exception was thrown from the Python worker: Traceback[^\n]*\n"
    r'[^\n]*program\.py", line \d+, in failing\n[^\n]*\nKeyError: \'no price in order 17\'',
    r"\[PYTHON_EXCEPTION\] An exception was thrown from the Python worker: (ottla\.[\w.]+: )?"
    r"a row is a record of about 3,000,\d+ bytes: option kafka\.max\.request\.size allows",
)
"""The part of each error behind Spark's words that the program shows: a sentence, or a function's line."""
