"""An executor is killed while tasks write, on a standalone cluster of two workers: no row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from ottla.broker.testing import BrokerProcess
from peers.spark_cluster import SMALL, SparkCluster
from peers.topics import Sent, Topics
from spark.topic_copying import arrived

RECORDS = 1_200
PARTITIONS = 4
WITHIN_S = 500.0
EXACTLY_ONCE = {"delivery": "exactly-once"}

pytestmark = pytest.mark.timeout(1_200)

PROGRAM = """
import json, sys, time

from pyspark import TaskContext
from pyspark.sql import SparkSession

master, settings, servers, source, target, options, folder, streaming = json.loads(sys.argv[1])
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config("spark." + name, value)
spark = builder.getOrCreate()
cluster = {"kafka.bootstrap.servers": servers}

def slow(batches):
    with open(f"{folder}/attempt-{TaskContext.get().taskAttemptId()}", "w"):
        pass
    for batch in batches:
        time.sleep(0.2)
        yield batch

def passed(rows):
    return rows.select("key", "value").mapInArrow(slow, "key BINARY, value BINARY")

if streaming:
    reader = spark.readStream.format("ottla").options(**cluster, subscribe=source, startingOffsets="earliest")
    rows = passed(reader.option("maxOffsetsPerTrigger", 400).load())
    writer = rows.writeStream.format("ottla").options(**cluster, **options, topic=target)
    writer = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
else:
    rows = passed(spark.read.format("ottla").options(**cluster, subscribe=source).load())
    rows.write.format("ottla").mode("append").options(**cluster, **options, topic=target).save()
spark.stop()
"""


@pytest.mark.parametrize(
    ("streaming", "options"),
    [
        pytest.param(True, EXACTLY_ONCE, id="stream"),
        pytest.param(False, {**EXACTLY_ONCE, "write.id": "copy"}, id="table"),
        pytest.param(False, {}, id="table-at-least-once", marks=pytest.mark.slow),
    ],
)
def test_a_killed_executor_loses_nothing_and_doubles_nothing_that_is_exactly_once(
    cluster: SparkCluster, broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str],
    tmp_path: Path, streaming: bool, options: dict[str, str],
) -> None:  # fmt: skip
    source, target = topics.create(fresh("source"), PARTITIONS), topics.create(fresh("target"), 2)
    topics.send(source, [Sent(value=b"%d" % row, partition=row % PARTITIONS) for row in range(RECORDS)])
    settings = {**SMALL, "sql.execution.arrow.maxRecordsPerBatch": "20", "ui.enabled": "false"}
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    given = [
        cluster.url, settings, broker.bootstrap_servers, source, target, options, str(tmp_path), streaming,
    ]  # fmt: skip

    with (tmp_path / "driver.log").open("w") as log:
        driver = subprocess.Popen([sys.executable, str(program), json.dumps(given)], stderr=log, stdout=log)
        try:
            attempts_before = wait_for_attempts(tmp_path, driver)
            killed = kill_an_executor()
            status = driver.wait(WITHIN_S)
        finally:
            driver.kill()
            driver.wait(30)

    assert status == 0, (tmp_path / "driver.log").read_text()[-3_000:]
    assert killed
    assert len(list(tmp_path.glob("attempt-*"))) > attempts_before, "tasks of the executor ran again"
    found = arrived(broker.bootstrap_servers, target, 2)
    assert found.keys() == {str(row) for row in range(RECORDS)}
    if options:
        assert found == Counter({str(row): 1 for row in range(RECORDS)})


def wait_for_attempts(folder: Path, driver: subprocess.Popen[bytes]) -> int:
    """Wait until two tasks are under way; return how many began."""
    until = time.monotonic() + WITHIN_S
    while (found := len(list(folder.glob("attempt-*")))) < 2:
        assert driver.poll() is None, (folder / "driver.log").read_text()[-3_000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def kill_an_executor() -> bool:
    """Kill the Java process of an executor; its worker starts another one."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            if any("CoarseGrainedExecutorBackend" in word for word in words):
                process.kill()
                return True
    return False
