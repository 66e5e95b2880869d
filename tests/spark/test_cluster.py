"""Pipelines on a standalone cluster of two workers: what outgrows one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ottla.broker.testing import BrokerProcess
from peers.pipelines import Pipeline
from peers.spark_cluster import SparkCluster, spark_cluster
from peers.topics import Sent, Topics

SMALL = {
    "driver.host": "127.0.0.1",
    "driver.bindAddress": "127.0.0.1",
    "driver.memory": "512m",
    "executor.memory": "512m",
    "sql.shuffle.partitions": "2",
}
RECORDS = 2_000

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_pipeline_runs_on_both_workers(
    cluster: SparkCluster, broker: BrokerProcess, topics: Topics, fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, dead = topics.create(fresh("lines"), 4), topics.create(fresh("dead"))
    lines = [json.dumps({"n": number}) if number % 100 else "broken" for number in range(RECORDS)]
    topics.send(topic, [Sent(value=each.encode(), partition=at % 4) for at, each in enumerate(lines)])
    declared = tmp_path / "lines.toml"
    spark = "\n".join(f'{name} = "{value}"' for name, value in SMALL.items())
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
[spark]
master = "{cluster.url}"
{spark}
"""
    )

    status = Pipeline(declared, tmp_path / "state").once()

    assert status["queries"]["main"]["counts"] == {"good": RECORDS - RECORDS // 100, "dead": RECORDS // 100}
    table = pq.read_table(tmp_path / "lake")
    assert sorted(table.column("n").to_pylist()) == [number for number in range(RECORDS) if number % 100]
    assert cluster.workers_of_last_application() == 2
