"""Spark's own Kafka connector: `format("ottla")` reads the same rows, and our broker serves it unchanged."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.producer import SyncProducer
from ottla.protocol.topics import TopicPartition
from peers.kraft_kafka import KraftKafka
from peers.maven import spark_connector
from peers.spark import Stream, spark_session
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

CODECS: tuple[Compression, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 400
"""In each partition of the topic that both read."""

Options = Mapping[str, object]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    pytest.importorskip("pyspark")
    jars = spark_connector().replace(":", ",")
    with spark_session(tmp_path_factory.mktemp("spark"), {"spark.jars": jars}) as session:
        yield session


@pytest.fixture(scope="module", params=["ottla", "kafka-4.1"])
def topics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """The topics of a broker: ours, or Apache Kafka's."""
    folder = tmp_path_factory.mktemp("broker")
    with ExitStack() as stack:
        running: Any = BrokerProcess(folder) if request.param == "ottla" else KraftKafka(folder)
        stack.enter_context(running)
        yield stack.enter_context(Topics(running.bootstrap_servers))


@pytest.fixture(scope="module")
def mixed(topics: Topics) -> str:
    """A topic of three partitions, the last of which is empty: all codecs, and all that may be missing."""
    # The records are years old: a broker would delete them after some minutes.
    name = topics.create("mixed", 3, retention_ms="-1")
    for partition in (0, 1):
        for index, codec in enumerate(CODECS):
            part = RECORDS // len(CODECS)
            numbers = range(index * part, (index + 1) * part)
            with SyncProducer(bootstrap_servers=topics.bootstrap_servers, compression_type=codec) as producer:
                for number in numbers:
                    producer.send(name, **record(number), partition=partition)
    return name


def record(number: int) -> dict[str, Any]:
    """Return a record without a key, value or headers every now and then; times are not in order."""
    headers: list[tuple[str, bytes | None]] = [("number", b"%d" % number), ("null", None), ("empty", b"")]
    return {
        "key": None if number % 3 == 0 else b"key-%d" % (number % 7),
        "value": None if number % 11 == 0 else b"value-%d" % number * (number % 5),
        "headers": headers[: number % 4] or None,
        "timestamp_ms": 1_700_000_000_000 + number * 1_000 - (5_000 if number % 13 == 0 else 0),
    }


@pytest.fixture
def fresh() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{secrets.token_hex(4)}"


@pytest.fixture
def read(spark: SparkSession, topics: Topics) -> Callable[[str, Options], DataFrame]:
    """Read with one of the two: `read("kafka", {"subscribe": name})`."""

    def read(source: str, options: Options) -> DataFrame:
        given: Any = {"kafka.bootstrap.servers": topics.bootstrap_servers, **options}
        return spark.read.format(source).options(**given).load()

    return read


@pytest.fixture
def stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> Iterator[Callable[[str, Options], Stream]]:
    made: list[Stream] = []

    def stream(source: str, options: Options) -> Stream:
        given: Any = {"kafka.bootstrap.servers": topics.bootstrap_servers, **options}
        made.append(
            Stream(
                lambda: spark.readStream.format(source).options(**given).load(),
                tmp_path / f"{source}-{len(made)}",
                {"availableNow": True},
            )
        )
        return made[-1]

    yield stream
    for each in made:
        each.stop()


def rows_of(table: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict(recursive=True) for row in table.collect()]
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def by_offset(topic: str, *offsets: int) -> str:
    return json.dumps({topic: {str(index): offset for index, offset in enumerate(offsets)}})


AT = 1_700_000_000_000
READ: dict[str, tuple[dict[str, object], int]] = {
    "all": ({"subscribe": "mixed"}, 2 * RECORDS),
    "headers": ({"subscribe": "mixed", "includeHeaders": "true"}, 2 * RECORDS),
    "pattern": ({"subscribePattern": "ixe"}, 2 * RECORDS),
    "assign": ({"assign": '{"mixed": [1, 2]}'}, RECORDS),
    "offsets": (
        {"subscribe": "mixed", "startingOffsets": by_offset("mixed", 17, -2, -2),
         "endingOffsets": by_offset("mixed", 300, 5, -1)},
        283 + 5,
    ),
    "time": ({"subscribe": "mixed", "startingTimestamp": AT + 100_001, "endingTimestamp": AT + 200_000,
              "startingOffsetsByTimestampStrategy": "latest"}, 2 * 99),
    "times": (
        {"subscribe": "mixed", "startingOffsetsByTimestamp": by_offset("mixed", AT, AT + 350_000, AT),
         "startingOffsetsByTimestampStrategy": "latest",
         "endingOffsetsByTimestamp": by_offset("mixed", AT + 10_000, AT * 2, AT)},
        9 + 50,  # the first record is older than that
    ),
    "tasks": ({"subscribe": "mixed", "minPartitions": 7}, 2 * RECORDS),
    "tasks by size": ({"subscribe": "mixed", "maxRecordsPerPartition": 99}, 2 * RECORDS),
    "lost, but allowed": (
        {"subscribe": "mixed", "endingOffsets": by_offset("mixed", 9_999, 5, 0), "failOnDataLoss": "false",
         "kafkaConsumer.pollTimeoutMs": 3_000},
        RECORDS + 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("options", list(READ))
def test_both_read_the_same_rows(read: Callable[[str, Options], DataFrame], mixed: str, options: str) -> None:
    given, count = READ[options]
    theirs, ours = read("kafka", given), read("ottla", given)

    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)
    assert ours.count() == count


FAIL: dict[str, dict[str, object]] = {
    "no such topic": {"subscribe": "missing"},
    "a start behind the end": {"subscribe": "mixed", "startingOffsets": by_offset("mixed", 9_999, 0, 0)},
    "an end that no record has": {
        "subscribe": "mixed", "endingOffsets": by_offset("mixed", 9_999, 5, 0),
        "kafkaConsumer.pollTimeoutMs": 3_000,
    },
    "a time after all records": {"subscribe": "mixed", "startingTimestamp": AT * 2},
    "a partition without an offset": {"subscribe": "mixed", "startingOffsets": by_offset("mixed", 1, 1)},
    "a batch from the end": {"subscribe": "mixed", "startingOffsets": "latest"},
    "two ways to choose": {"subscribe": "mixed", "assign": '{"mixed": [0]}'},
    "an own deserializer": {"subscribe": "mixed", "kafka.value.deserializer": "x"},
}  # fmt: skip


@pytest.mark.parametrize("options", list(FAIL))
def test_both_refuse_the_same(read: Callable[[str, Options], DataFrame], mixed: str, options: str) -> None:
    for source in ("kafka", "ottla"):
        with pytest.raises(Exception, match=r"\w"):
            read(source, FAIL[options]).count()


def test_both_have_the_same_batches_of_a_stream(stream: Callable[[str, Options], Stream], mixed: str) -> None:
    given = {
        "subscribe": mixed, "startingOffsets": by_offset(mixed, 0, 300, -2), "maxOffsetsPerTrigger": 120,
        "includeHeaders": "true",
    }  # fmt: skip

    found = {}
    for source in ("kafka", "ottla"):
        query = stream(source, given)
        query.run()
        found[source] = {
            number: sorted((row.partition, row.offset, row) for row in rows)
            for number, rows in query.batches.items()
        }

    assert found["ottla"] == found["kafka"]
    assert sum(map(len, found["ottla"].values())) == RECORDS + 100


def test_both_leave_out_what_was_deleted(
    read: Callable[[str, Options], DataFrame], topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("deleted"))
    topics.fill(name, {0: 10})
    topics.delete_records({TopicPartition(name, 0): 6})
    counted_on = {
        "subscribe": name,
        "startingOffsets": by_offset(name, 2),
        "kafkaConsumer.pollTimeoutMs": 3_000,
    }

    for source in ("kafka", "ottla"):
        with pytest.raises(Exception, match="failOnDataLoss"):
            read(source, counted_on).count()
    assert rows_of(read("ottla", counted_on | {"failOnDataLoss": "false"})) == rows_of(
        read("kafka", counted_on | {"failOnDataLoss": "false"})
    )


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_both_read_the_same_of_transactions(
    read: Callable[[str, Options], DataFrame], topics: Topics, fresh: Callable[[str], str], level: str
) -> None:
    name = topics.create(fresh("transactions"))
    with SyncProducer(bootstrap_servers=topics.bootstrap_servers, transactional_id=name) as producer:
        for number in range(6):
            producer.begin_transaction()
            for index in range(5):
                producer.send(name, b"%d-%d" % (number, index), partition=0)
            producer.flush()  # what is not sent yet would never be, where it is given up
            if number % 3 == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    given = {"subscribe": name, "kafka.isolation.level": level}

    theirs, ours = rows_of(read("kafka", given)), rows_of(read("ottla", given))

    assert ours == theirs
    assert len(ours) == (20 if level == "read_committed" else 30)


# --- the connector with either broker


def test_what_the_connector_writes_is_read_by_both(
    spark: SparkSession,
    read: Callable[[str, Options], DataFrame],
    topics: Topics,
    fresh: Callable[[str], str],
) -> None:
    name = topics.create(fresh("written"), 2)
    given: Any = {"kafka.bootstrap.servers": topics.bootstrap_servers, "includeHeaders": "true"}
    rows = spark.sql(
        f"""SELECT '{name}' AS topic, CAST(id % 2 AS INT) AS partition, CAST(id AS STRING) AS key,
            IF(id = 3, NULL, CAST(repeat('x', CAST(id AS INT)) AS BINARY)) AS value,
            IF(id = 5, NULL, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)))) AS headers
            FROM range(50)"""
    )

    rows.write.format("kafka").options(**given).save()

    found = rows_of(read("kafka", {"subscribe": name, "includeHeaders": "true"}))
    assert found == rows_of(read("ottla", {"subscribe": name, "includeHeaders": "true"}))
    assert sorted(int(row["key"]) for row in found) == list(range(50))
    assert next(row["value"] for row in found if row["key"] == b"3") is None


def test_a_stream_of_the_connector_goes_from_topic_to_topic(
    spark: SparkSession,
    read: Callable[[str, Options], DataFrame],
    topics: Topics,
    fresh: Callable[[str], str],
    tmp_path: Path,
) -> None:
    name, copy = topics.create(fresh("from"), 2), topics.create(fresh("to"), 2)
    given: Any = {"kafka.bootstrap.servers": topics.bootstrap_servers}
    reader = spark.readStream.format("kafka").options(**given, subscribe=name, startingOffsets="earliest")
    for begin in (0, 20):
        topics.send(name, [Sent(key=b"%d" % index, value=b"v") for index in range(begin, begin + 20)])
        writer = reader.load().select("key", "value").writeStream.format("kafka")
        place = str(tmp_path / "checkpoint")
        query = (
            writer.options(**given, topic=copy, checkpointLocation=place).trigger(availableNow=True).start()
        )
        query.awaitTermination()

    assert sorted(int(row["key"]) for row in rows_of(read("ottla", {"subscribe": copy}))) == list(range(40))
