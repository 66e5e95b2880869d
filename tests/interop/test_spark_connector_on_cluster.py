"""Streams of Spark's own connector and of `format("ottla")` on two workers: late rows, lost records."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.protocol.topics import TopicPartition
from peers.maven import missing_tools, spark_connector
from peers.spark import Stream, spark_session
from peers.spark_cluster import SMALL, spark_cluster
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_tools()), reason=str(missing_tools())),
]
SOURCES = ("kafka", "ottla")
BEGIN_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    with ExitStack() as stack:
        cluster = stack.enter_context(spark_cluster(tmp_path_factory.mktemp("cluster")))
        own = {f"spark.{name}": value for name, value in SMALL.items()}
        own |= {"spark.master": cluster.url, "spark.jars": spark_connector().replace(":", ",")}
        yield stack.enter_context(spark_session(tmp_path_factory.mktemp("spark"), own))


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder) as broker, Topics(broker.bootstrap_servers) as topics:
        yield topics


Streams = Callable[..., Stream]


@pytest.fixture
def stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> Iterator[Streams]:
    """Return streams over a topic: `stream("kafka", "orders", then=windows)`."""
    made: list[Stream] = []

    def stream(
        source: str, topic: str, then: Callable[[DataFrame], DataFrame] | None = None, **options: str
    ) -> Stream:
        given: Any = {
            "kafka.bootstrap.servers": topics.bootstrap_servers, "subscribe": topic,
            "startingOffsets": "earliest", **options,
        }  # fmt: skip

        def rows() -> DataFrame:
            found = spark.readStream.format(source).options(**given).load()
            return found if then is None else then(found)

        made.append(Stream(rows, tmp_path / f"{source}-{len(made)}", {"availableNow": True}))
        return made[-1]

    yield stream
    for each in made:
        each.stop()


def windows(rows: DataFrame) -> DataFrame:
    """Count records in windows of ten seconds; records later than twenty seconds are dropped."""
    from pyspark.sql import functions

    late = rows.withWatermark("timestamp", "20 seconds")
    counted = late.groupBy(functions.window("timestamp", "10 seconds")).count()
    return counted.selectExpr("CAST(window.start AS STRING) AS start", "count")


def test_late_rows_are_dropped_as_with_the_connector(stream: Streams, topics: Topics) -> None:
    name = topics.create(f"late-{secrets.token_hex(4)}", 2, retention_ms="-1")
    queries = {source: stream(source, name, windows, maxOffsetsPerTrigger="60") for source in SOURCES}
    rounds = (
        list(range(60)),  # the watermark is at 39 s after it
        [5, 41, 62, 3, 95, 44, 120],  # of the first four windows is nothing counted any more
        [50, 99, 101, 150, 20, 200],
    )

    for seconds in rounds:
        topics.send(name, [
            Sent(value=b"v", partition=second % 2, timestamp_ms=BEGIN_MS + second * 1_000)
            for second in seconds
        ])  # fmt: skip
        for query in queries.values():
            query.run()

    found = {
        source: {number: sorted(map(tuple, rows)) for number, rows in query.batches.items() if rows}
        for source, query in queries.items()
    }
    assert found["ottla"] == found["kafka"]
    counts = [count for rows in found["ottla"].values() for _, count in rows]
    assert counts[:4] == [10, 10, 10, 10]
    dropped = {source: last_dropped(query) for source, query in queries.items()}
    assert dropped["ottla"] == dropped["kafka"]


def last_dropped(query: Stream) -> list[int]:
    """Return how many rows each batch of the last run dropped because they were late."""
    assert query.query is not None
    return [
        sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
        for progress in query.query.recentProgress
    ]


@pytest.mark.parametrize("fails", [True, False])
def test_records_past_the_retention_are_lost_as_with_the_connector(
    stream: Streams, topics: Topics, *, fails: bool
) -> None:
    name = topics.create(f"lost-{secrets.token_hex(4)}", 2)
    queries = {source: stream(source, name, failOnDataLoss=str(fails).lower()) for source in SOURCES}
    topics.fill(name, {0: 4, 1: 4})
    for query in queries.values():
        query.run()
    topics.fill(name, {0: 9, 1: 9}, start=4)
    topics.delete_records({TopicPartition(name, 0): 7})

    for query in queries.values():
        if fails:
            query.start()
            assert "failOnDataLoss" in query.failure()
        else:
            query.run()

    found = {
        source: sorted((row.partition, row.offset, bytes(row.value)) for row in query.all_rows)
        for source, query in queries.items()
    }
    if not fails:
        assert found["ottla"] == found["kafka"]
        kept = [offset for partition, offset, _ in found["ottla"] if partition == 0]
        assert kept[:5] == [0, 1, 2, 3, 7], "offsets 4 to 6 are lost"
