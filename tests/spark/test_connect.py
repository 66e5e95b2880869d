"""The sources and the sink through Spark Connect, where the program has no Java of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from peers.spark import small_driver
from peers.topics import Topics

pytest.importorskip("grpc", reason="Spark Connect needs pip install 'pyspark[connect]'")

TESTS = Path(__file__).parents[1]

PROGRAM = """
import json, os, sys, tempfile

os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

sys.path.insert(0, {tests!r})
from peers.spark import with_patience

servers, source, target = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
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

found = spark.read.format("ottla").options(**cluster, subscribe=target).load()
values = [row[0] for row in found.selectExpr("CAST(value AS STRING)").collect()]
print(json.dumps({"counts": counts, "values": sorted(values)}))
spark.stop()
"""


@pytest.mark.timeout(600)
def test_tables_and_streams_are_read_and_written_through_connect(
    broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    source, target = topics.create(fresh("source"), 2), topics.create(fresh("target"))
    topics.fill(source, {0: 3, 1: 2})
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("{tests!r}", repr(str(TESTS))))

    done = subprocess.run(
        [sys.executable, str(program), broker.bootstrap_servers, source, target],
        env=os.environ | small_driver(tmp_path),
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    sent = ["0-0", "0-1", "0-2", "1-0", "1-1"]
    assert found["counts"] == [5, 2, 5]
    assert found["values"] == sorted(f"{how} {each}" for how in ("stream", "table") for each in sent)
