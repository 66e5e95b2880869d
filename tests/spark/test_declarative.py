"""Spark Declarative Pipelines: topics as streaming tables and as sinks, with `spark-pipelines`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ottla.broker.testing import BrokerProcess, free_port
from peers.spark_cluster import SparkCluster, connect_server
from peers.topics import Sent, Topics
from spark.topic_copying import arrived

pytest.importorskip("grpc_status", reason="spark-pipelines needs pip install 'pyspark[connect]' pyyaml")
pytest.importorskip("yaml")

ORDERS = 30

SPECIFICATION = """
name: orders
storage: {folder}/storage
libraries:
  - glob:
      include: definitions/**
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
CLUSTER = {{"kafka.bootstrap.servers": "{servers}"}}


@dp.table
def orders():
    reader = spark.readStream.format("ottla").options(**CLUSTER, subscribe="{source}")
    rows = reader.options(**{{
        "startingOffsets": "earliest", "value.format": "json", "value.schema": "drink STRING, cups INT",
    }}).load()
    return rows.select("value.*")


@dp.materialized_view
def cups():
    return spark.read.table("orders").groupBy("drink").agg(F.sum("cups").alias("cups"))


dp.create_sink("large", "ottla", {{**CLUSTER, "topic": "{target}", "delivery": "exactly-once"}})


@dp.append_flow(target="large")
def large_orders():
    rows = spark.readStream.table("orders").where("cups > 1")
    return rows.selectExpr("drink AS key", "concat(drink, '-', cups) AS value")
"""


@pytest.mark.timeout(900)
def test_topics_are_streaming_tables_and_sinks_of_a_declarative_pipeline(
    cluster: SparkCluster, broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:  # fmt: skip
    source, target = topics.create(fresh("orders"), 2), topics.create(fresh("large"))
    orders = [("tea" if number % 2 else "coffee", number % 3) for number in range(ORDERS)]
    topics.send(source, [
        Sent(value=b'{"drink": "%s", "cups": %d}' % (drink.encode(), cups), partition=at % 2)
        for at, (drink, cups) in enumerate(orders)
    ])  # fmt: skip
    (tmp_path / "definitions").mkdir()
    text = DEFINITIONS.format(servers=broker.bootstrap_servers, source=source, target=target)
    (tmp_path / "definitions" / "orders.py").write_text(text)
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path.as_uri()))

    with connect_server(cluster, tmp_path / "server", free_port()) as server:
        for _ in range(2):  # the second run finds nothing new
            run(server, tmp_path)

    warehouse = tmp_path / "server" / "warehouse"
    found = pq.read_table(warehouse / "cups").to_pylist()
    expected = Counter[str]()
    for drink, cups in orders:
        expected[drink] += cups
    assert {row["drink"]: row["cups"] for row in found} == expected
    assert pq.read_table(warehouse / "orders").num_rows == ORDERS
    large = Counter(f"{drink}-{cups}" for drink, cups in orders if cups > 1)
    assert arrived(broker.bootstrap_servers, target, 1) == large


def run(server: str, folder: Path) -> None:
    """Run the pipeline to its end, with Spark's command."""
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    done = subprocess.run(
        [program, "run", "--remote", server, "--spec", str(folder / "spark-pipeline.yml")],
        cwd=folder, env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
