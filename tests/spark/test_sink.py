"""Rows of Spark in topics of our broker: batches and streams, at least once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.spark import pandas_of_any_age
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture
def topic(topics: Topics, fresh: Callable[[str], str]) -> str:
    return topics.create(fresh("sink"), partitions=3)


@pytest.fixture
def options(broker: BrokerProcess) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers}


def read(spark: SparkSession, options: dict[str, str], topic: str) -> DataFrame:
    return (
        spark.read.format("ottla")
        .options(**{"kafka.bootstrap.servers": options["kafka.bootstrap.servers"]})
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )


def values(spark: SparkSession, options: dict[str, str], topic: str) -> list[str]:
    found = read(spark, options, topic).selectExpr("CAST(value AS STRING) AS value").collect()
    return sorted(row.value for row in found)


def write(rows: DataFrame, options: dict[str, str], **more: str) -> None:
    named = {name.replace("__", "."): value for name, value in more.items()}
    rows.write.format("ottla").options(**options, **named).mode("append").save()


def stream(rows: DataFrame, options: dict[str, str], checkpoint: Path, **more: str) -> None:
    """Write what is there now, and end."""
    named = {name.replace("__", "."): value for name, value in more.items()}
    query = (
        rows.writeStream.format("ottla")
        .options(**options, **named)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(100)
    finally:
        query.stop()


def source(spark: SparkSession, options: dict[str, str], topic: str, **more: str) -> DataFrame:
    return (
        spark.readStream.format("ottla")
        .options(**options, **more)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )


# --- batches


@pytest.mark.slice
def test_every_column_of_a_record_is_written(
    spark: SparkSession, options: dict[str, str], topic: str
) -> None:
    schema = f"key binary, value binary, topic string, partition int, headers {HEADERS}, other double"
    rows: list[tuple[Any, ...]] = [
        (b"a", b"1", topic, 2, [("h", b"x"), ("h", None)], 0.5),
        (None, b"2", topic, 1, [], 0.5),
        (b"c", None, topic, 0, None, 0.5),
        (b"", b"", topic, 0, None, 0.5),
    ]

    write(spark.createDataFrame(rows, schema).coalesce(1), options)

    found = read(spark, options, topic).orderBy("partition", "offset").collect()
    assert [
        (row.key and bytes(row.key), row.value and bytes(row.value), row.partition, list(row.headers or []))
        for row in found
    ] == [
        (b"c", None, 0, []),
        (b"", b"", 0, []),
        (None, b"2", 1, []),
        (b"a", b"1", 2, [("h", bytearray(b"x")), ("h", None)]),
    ]


def test_text_is_written_as_utf8_and_keys_go_where_all_clients_send_them(
    spark: SparkSession, options: dict[str, str], topic: str, topics: Topics
) -> None:
    rows = [(f"key {number}", f"grüße {number}") for number in range(30)]
    topics.send(topic, [Sent(value=value.encode(), key=key.encode()) for key, value in rows])

    write(spark.createDataFrame(rows, "key string, value string"), options, topic=topic)

    counts = Counter(
        (bytes(row.key), bytes(row.value), row.partition) for row in read(spark, options, topic).collect()
    )
    assert len(counts) == 30
    assert set(counts.values()) == {2}


def test_the_option_topic_wins_over_the_column(
    spark: SparkSession, options: dict[str, str], topic: str
) -> None:
    rows = spark.createDataFrame([("a", "elsewhere"), ("b", None)], "value string, topic string")

    write(rows, options, topic=topic)

    assert values(spark, options, topic) == ["a", "b"]


def test_rows_go_to_the_topics_that_they_name(
    spark: SparkSession, options: dict[str, str], topics: Topics, fresh: Callable[[str], str]
) -> None:
    names = [topics.create(fresh("each"), partitions=2) for _ in range(3)]
    rows = [(str(number), names[number % 3]) for number in range(999)]

    write(spark.createDataFrame(rows, "value string, topic string"), options)

    for place, name in enumerate(names):
        assert values(spark, options, name) == sorted(str(number) for number in range(place, 999, 3))


def test_times_are_those_of_the_column_only_when_asked_for(
    spark: SparkSession, options: dict[str, str], topic: str
) -> None:
    then = datetime(2020, 2, 29, 12, 0, 0, 123000, UTC)
    rows = spark.createDataFrame([("then", then), ("now", None)], "value string, timestamp timestamp")

    write(rows, options, topic=topic, includeTimestamps="true")
    write(rows.selectExpr("'later' AS value", "timestamp"), options, topic=topic)

    found = read(spark, options, topic).selectExpr("CAST(value AS STRING)", "unix_millis(timestamp) AS at")
    old = int(then.timestamp() * 1_000)
    assert {(row.value, row["at"] == old) for row in found.collect()} == {
        ("then", True),
        ("now", False),
        ("later", False),
    }


def test_a_topic_is_copied_with_everything(
    spark: SparkSession, options: dict[str, str], topic: str, topics: Topics, fresh: Callable[[str], str]
) -> None:
    topics.send(
        topic,
        [
            Sent(
                value=b"%d" % n,
                key=b"k%d" % n,
                partition=n % 3,
                timestamp_ms=1_000 + n,
                headers=(("h", b"x"),),
            )
            for n in range(60)
        ],
    )
    copy = topics.create(fresh("copy"), partitions=3)

    write(read(spark, options, topic), options, topic=copy, includeTimestamps="true")

    columns = ["key", "value", "partition", "timestamp", "headers"]
    expected = sorted(map(str, read(spark, options, topic).select(*columns).collect()))
    assert sorted(map(str, read(spark, options, copy).select(*columns).collect())) == expected
    assert len(expected) == 60


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ("'k' AS key", {"topic": "t"}, "no column 'value', which each record needs; the columns are key"),
        ("'v' AS value", {}, "no topic is given"),
        ("1 AS value", {"topic": "t"}, "column 'value' must be binary or string, not int"),
        ("'v' AS value", {"topik": "t"}, "did you mean 'topic'?"),
        ("'v' AS value", {"topic": "t", "kafka.acks": "2"}, "acks"),
        ("'v' AS value, CAST(NULL AS STRING) AS topic", {}, "1 rows have a null in column 'topic'"),
        ("'v' AS value, 9 AS partition", {"topic": "{}"}, "partitions 0 to 2"),
        (
            "'v' AS value",
            {"topic": "{}", "delivery": "exactly-once"},
            "needs transactions, which these brokers do not have",
        ),
    ],
)
def test_invalid_writes_are_explained(
    spark: SparkSession, options: dict[str, str], topic: str, columns: str, more: dict[str, str], message: str
) -> None:
    named = {name: value.replace("{}", topic) for name, value in more.items()}

    with pytest.raises(PySparkException) as caught:
        write(spark.sql(f"SELECT {columns}"), options | named)

    assert message in str(caught.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, options: dict[str, str], topic: str) -> None:
    rows = spark.sql("SELECT 'v' AS value")

    with pytest.raises(PySparkException, match="cannot be overwritten"):
        rows.write.format("ottla").options(**options, topic=topic).mode("overwrite").save()


# --- streams


@pytest.mark.slice
def test_a_stream_arrives_with_all_its_rows(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics.fill(topic, {0: 300, 1: 300, 2: 300})
    target = topics.create(fresh("target"), partitions=2)
    rows = source(spark, options, topic, maxOffsetsPerTrigger="100").select("key", "value", "partition")

    stream(rows.drop("partition"), options, tmp_path, topic=target)

    assert values(spark, options, target) == values(spark, options, topic)


def test_a_stream_goes_on_where_it_was(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    target = topics.create(fresh("target"), partitions=2)
    for part in range(2):
        topics.fill(topic, {0: 50}, start=part * 50)
        stream(source(spark, options, topic).select("value"), options, tmp_path, topic=target)

    assert values(spark, options, target) == values(spark, options, topic)


def test_a_repeated_batch_has_the_same_ids(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics.fill(topic, {0: 100, 1: 100, 2: 100})
    target = topics.create(fresh("target"), partitions=2)
    for _ in range(2):
        rows = source(spark, options, topic, maxOffsetsPerTrigger="100").select("value")
        stream(rows, options, tmp_path, topic=target, delivery="dedupe")
        forget_last_commit(tmp_path)

    found = read(spark, options, target).selectExpr(
        "CAST(value AS STRING) AS value",
        "map_from_entries(filter(headers, each -> each.key LIKE 'ottla-%')) AS id",
    )
    found = found.selectExpr(
        "value", "id['ottla-query'] AS q", "id['ottla-batch'] AS b", "id['ottla-partition'] AS p",
        "id['ottla-row'] AS r",
    )  # fmt: skip
    assert found.count() > 300
    once = found.dropDuplicates(["q", "b", "p", "r"])
    assert sorted(row.value for row in once.collect()) == values(spark, options, topic)


def test_rows_that_come_again_in_another_order_lose_none_of_them(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics.fill(topic, {0: 100, 1: 100, 2: 100})
    target = topics.create(fresh("target"), partitions=2)
    # Some rows are equal. One task has them all; the first attempt came half way.
    drinks = source(spark, options, topic).selectExpr("topic AS key", "hash(value) % 50 AS drink")
    low, high = drinks.where("drink < 0"), drinks.where("drink >= 0")
    first, second = low.union(high).where("drink < 20"), high.union(low)
    for together in (first, second):
        rows = together.coalesce(1).selectExpr("key", "CAST(drink AS STRING) AS value")
        stream(rows, options, tmp_path, topic=target, delivery="dedupe")
        forget_last_commit(tmp_path)

    found = read(spark, options, target).selectExpr(
        "CAST(value AS STRING) AS value", "transform(headers, each -> CAST(each.value AS STRING)) AS id"
    )
    written = read(spark, options, topic).selectExpr("CAST(hash(value) % 50 AS STRING) AS value")
    expected = Counter(row.value for row in written.collect())
    assert found.count() > sum(expected.values()) == 300
    assert max(expected.values()) > 1
    assert Counter(row.value for row in found.dropDuplicates(["id"]).collect()) == expected


def test_complete_results_are_added_each_time(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    target = topics.create(fresh("target"), partitions=1)
    counts = source(spark, options, topic).groupBy().count().selectExpr("CAST(count AS STRING) AS value")
    for part in range(2):
        topics.fill(topic, {0: 5}, start=part * 5)
        query = (
            counts.writeStream.format("ottla")
            .options(**options, topic=target, checkpointLocation=str(tmp_path))
            .queryName(fresh("named"))
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    assert values(spark, options, target) == ["10", "5"]


def test_updates_are_refused_by_spark(
    spark: SparkSession, options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    counts = source(spark, options, topic).groupBy().count().selectExpr("CAST(count AS STRING) AS value")

    with pytest.raises(PySparkException, match="does not support Update mode"):
        query = (
            counts.writeStream.format("ottla")
            .options(**options, topic=topic, checkpointLocation=str(tmp_path))
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(100)


def test_a_write_of_a_streams_batch_needs_a_name_to_be_known_by(
    spark: SparkSession,
    options: dict[str, str],
    topic: str,
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics.fill(topic, {0: 10})
    target = topics.create(fresh("target"), partitions=1)

    def run(checkpoint: str, **more: str) -> None:
        def each(rows: DataFrame, batch_id: int) -> None:
            write(rows, options, topic=target, delivery="dedupe", **more)

        query = (
            source(spark, options, topic)
            .select("value")
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    with pytest.raises(PySparkException, match=r"write\.id"):
        run("a")
    run("b", write__id="copy")

    found = read(spark, options, target).selectExpr(
        "transform(headers, each -> CAST(each.value AS STRING)) AS ids"
    )
    (query, *_), *rest = [row.ids for row in found.collect()]
    assert query.endswith("/copy")
    assert len(rest) == 9


def forget_last_commit(checkpoint: Path) -> None:
    """Make a query believe that its last batch was not finished, as after a kill at that moment."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


# --- without a broker


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_without_a_broker_no_task_is_started(spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    with pytest.raises(PySparkException, match=f"'{NOWHERE}': reaching the cluster did not .* within 1 s"):
        write(_counted(spark.range(0, 8, 1, 8), tmp_path), UNREACHABLE, topic="orders", delivery=delivery)
    assert not list(tmp_path.iterdir())


def test_without_a_broker_no_task_of_a_stream_is_started(
    spark: SparkSession, options: dict[str, str], topics: Topics, topic: str, tmp_path: Path
) -> None:
    topics.send(topic, [Sent(value=b"row", partition=each) for each in range(3)])
    rows, folder = source(spark, options, topic), tmp_path / "tasks"
    folder.mkdir()
    with pytest.raises(PySparkException, match=f"'{NOWHERE}': reaching the cluster did not .* within 1 s"):
        stream(_counted(rows, folder), UNREACHABLE, tmp_path / "checkpoint", topic="orders")
    assert not list(folder.iterdir())


NOWHERE = "127.0.0.1:1"
UNREACHABLE = {"kafka.bootstrap.servers": NOWHERE, "kafka.bootstrap.timeout.ms": "1000"}


def _counted(rows: DataFrame, folder: Path) -> DataFrame:
    """Make each task of the rows leave a file in the folder."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        (folder / str(task.taskAttemptId())).touch()
        yield from batches

    with pandas_of_any_age():
        return rows.selectExpr("CAST('row' AS BINARY) AS value").mapInArrow(count, "value BINARY")
