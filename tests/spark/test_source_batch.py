"""Topics as tables, on real Spark against a real broker."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import msgpack
import pytest

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.source.spark_rows import ddl
from ottla.pipeline.values import ValueFormat
from ottla.protocol.topics import TopicPartition
from peers.crafted_batches import crafted_batches, serve_crafted
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Table = Callable[[Mapping[str, object]], DataFrame]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def values(rows: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows.select("value").collect())


def names(*counts: int, start: int = 0) -> list[str]:
    """Name the values that `Topics.fill` sends."""
    return sorted(f"{index}-{number}" for index, count in enumerate(counts) for number in range(start, count))


def offsets(topic: str, *of: int) -> str:
    return json.dumps({topic: {str(index): offset for index, offset in enumerate(of)}})


def message(failure: pytest.ExceptionInfo[Exception]) -> str:
    return " ".join(str(failure.value).split())


@pytest.fixture(scope="module")
def filled(topics: Topics) -> str:
    """A topic of three partitions: five records, three, and none."""
    name = topics.create("filled", 3)
    topics.fill(name, {0: 5, 1: 3})
    return name


@pytest.fixture(scope="module")
def timed(topics: Topics) -> str:
    """A topic of two partitions with records at 1, 2, 3 and 4 seconds, and at 3 and 5."""
    name = topics.create("timed", 2)
    for partition, seconds in ((0, (1, 2, 3, 4)), (1, (3, 5))):
        topics.send(
            name,
            [
                Sent(value=b"%d-%d" % (partition, at), partition=partition, timestamp_ms=at * 1_000)
                for at in seconds
            ],
        )
    return name


# --- columns


@pytest.mark.slice
def test_a_row_has_all_that_a_record_has(table: Table, topics: Topics, fresh: Callable[[str], str]) -> None:
    name = topics.create(fresh("columns"))
    topics.send(
        name,
        [
            Sent(
                key=b"k",
                value=b"v",
                timestamp_ms=1_700_000_000_123,
                headers=(("h", b"1"), ("h", None), ("ä", b"")),
            ),
            Sent(key=None, value=None, timestamp_ms=0),
            Sent(key=b"", value=b"", timestamp_ms=1),
        ],
    )

    rows = table({"subscribe": name, "includeHeaders": "true"})

    assert [row.asDict(recursive=True) for row in rows.orderBy("offset").collect()] == [
        {
            "key": key, "value": value, "topic": name, "partition": 0, "offset": offset,
            "timestamp": datetime.fromtimestamp(time_ms / 1_000, UTC).replace(tzinfo=None),
            "timestampType": 0, "headers": headers,
        }
        for offset, (key, value, time_ms, headers) in enumerate((
            (b"k", b"v", 1_700_000_000_123,
             [{"key": "h", "value": b"1"}, {"key": "h", "value": None}, {"key": "ä", "value": b""}]),
            (None, None, 0, None),
            (b"", b"", 1, None),
        ))
    ]  # fmt: skip


def test_the_schema_is_that_of_spark_s_own_source(table: Table, filled: str, spark: SparkSession) -> None:
    for headers in (False, True):
        wanted = spark.createDataFrame([], ddl(ValueFormat(), include_headers=headers)).schema
        assert table({"subscribe": filled, "includeHeaders": headers}).schema == wanted


def test_the_time_of_the_broker_is_told_apart(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("append"), message_timestamp_type="LogAppendTime")
    topics.send(name, [Sent(value=b"v", timestamp_ms=1)])

    row = table({"subscribe": name}).collect()[0]

    assert row.timestampType == 1
    assert row.timestamp.year >= 2024


# --- what to read


def test_topics_are_named_found_by_a_pattern_or_assigned(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    stem = fresh("which")
    for suffix in ("a", "b"):
        topics.create(f"{stem}-{suffix}", 2)
        topics.send(
            f"{stem}-{suffix}", [Sent(value=f"{suffix}{index}".encode(), partition=index) for index in (0, 1)]
        )

    assert values(table({"subscribe": f"{stem}-a, {stem}-b"})) == ["a0", "a1", "b0", "b1"]
    assert values(table({"subscribe": f"{stem}-b"})) == ["b0", "b1"]
    assert values(table({"subscribePattern": f"{stem[:-2]}..-[b-z]"})) == ["b0", "b1"]
    assert values(table({"assign": json.dumps({f"{stem}-a": [1], f"{stem}-b": [0]})})) == ["a1", "b0"]
    assert values(table({"subscribePattern": "no-such-topic"})) == []


def test_a_topic_that_is_not_there_is_an_error(table: Table, filled: str) -> None:
    with pytest.raises(Exception, match="UnknownTopicOrPartition") as failure:
        table({"subscribe": f"{filled},missing"}).collect()
    assert "topic 'missing' does not exist" in message(failure)


def test_an_assigned_partition_that_is_not_there_is_an_error(table: Table, filled: str) -> None:
    with pytest.raises(Exception, match="UnknownTopicOrPartition") as failure:
        table({"assign": json.dumps({filled: [1, 7]})}).collect()
    assert f"option 'assign': {filled}-7 does not exist" in message(failure)


# --- from where, up to where


def test_without_options_everything_is_read(table: Table, filled: str) -> None:
    assert values(table({"subscribe": filled})) == names(5, 3)
    assert values(
        table({"subscribe": filled, "startingOffsets": "earliest", "endingOffsets": "latest"})
    ) == names(5, 3)


@pytest.mark.slice
def test_offsets_say_from_where_and_up_to_where(table: Table, filled: str) -> None:
    begin = {"subscribe": filled, "startingOffsets": offsets(filled, 2, -2, -2)}

    assert values(table(begin)) == ["0-2", "0-3", "0-4", "1-0", "1-1", "1-2"]
    assert values(table(begin | {"endingOffsets": offsets(filled, 4, 1, -1)})) == ["0-2", "0-3", "1-0"]
    assert values(table(begin | {"endingOffsets": offsets(filled, 2, 0, 0)})) == []


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"startingTimestamp": 3_000}, ["0-3", "0-4", "1-3", "1-5"]),
        ({"startingTimestamp": 2_001, "endingTimestamp": 4_000}, ["0-3", "1-3"]),
        ({"startingOffsetsByTimestamp": (2_000, 4_000)}, ["0-2", "0-3", "0-4", "1-5"]),
        ({"endingOffsetsByTimestamp": (2_000, 9_000)}, ["0-1", "1-3", "1-5"]),
        ({"startingTimestamp": 5_000, "startingOffsetsByTimestampStrategy": "latest"}, ["1-5"]),
        ({"startingTimestamp": 3_000, "startingOffsets": "earliest"}, ["0-3", "0-4", "1-3", "1-5"]),
    ],
)  # fmt: skip
def test_times_say_from_where_and_up_to_where(
    table: Table, timed: str, given: dict[str, Any], wanted: list[str]
) -> None:
    written = {
        name: offsets(timed, *each) if isinstance(each, tuple) else each for name, each in given.items()
    }

    assert values(table({"subscribe": timed} | written)) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"startingTimestamp": 5_000}, "'startingTimestamp': timed-0 has no record at or after that time"),
        ({"startingOffsets": (9, 0), "endingOffsets": (3, 2)}, "timed-0 should be read from 9"),
        ({"startingOffsets": (9, 0)}, "which is behind its end 4 (option 'endingOffsets')"),
        ({"endingOffsets": (9, 2)}, "timed-0 ends at 4, and should be read up to 9"),
        ({"startingOffsets": (1,)}, "'startingOffsets' must name all partitions, and lacks timed-1"),
        ({"startingOffsets": "latest"}, "'startingOffsets' of a batch cannot be latest"),
        ({"startingOfsets": "earliest"}, "no option 'startingofsets'; did you mean 'startingOffsets'?"),
    ],
)  # fmt: skip
def test_unreadable_bounds_are_explained(table: Table, timed: str, given: dict[str, Any], words: str) -> None:
    written = {
        name: offsets(timed, *each) if isinstance(each, tuple) else each for name, each in given.items()
    }

    with pytest.raises(Exception, match=r"OptionError|DataLoss") as failure:
        table({"subscribe": timed} | written).collect()
    assert words in message(failure)


def test_a_schema_cannot_be_given(spark: SparkSession, topics: Topics, filled: str) -> None:
    reader = spark.read.format("ottla").schema("id INT").option("subscribe", filled)

    with pytest.raises(Exception, match="the columns are always key, value, topic"):
        reader.option("kafka.bootstrap.servers", topics.bootstrap_servers).load().collect()


# --- data loss


def test_records_that_are_gone_are_an_error_unless_that_is_allowed(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("gone"))
    topics.fill(name, {0: 6})
    topics.delete_records({TopicPartition(name, 0): 4})
    counted_on = {"subscribe": name, "startingOffsets": offsets(name, 0)}

    assert values(table({"subscribe": name})) == ["0-4", "0-5"]
    with pytest.raises(Exception, match="DataLoss") as failure:
        table(counted_on).collect()
    assert f"offsets from 0 of {name}-0 are lost" in message(failure)
    assert 'option("failOnDataLoss", "false")' in message(failure)

    allowed = counted_on | {"failOnDataLoss": "false"}
    assert values(table(allowed)) == ["0-4", "0-5"]
    assert values(table(allowed | {"endingOffsets": offsets(name, 99)})) == ["0-4", "0-5"]
    assert values(table(allowed | {"endingOffsets": offsets(name, 3)})) == []
    assert values(table(allowed | {"maxRecordsPerPartition": 1})) == ["0-4", "0-5"]


# --- tasks


def test_partitions_are_cut_into_as_many_tasks_as_wanted(table: Table, filled: str) -> None:
    def tasks(**options: object) -> int:
        rows = table({"subscribe": filled, **options})
        assert values(rows) == names(5, 3)
        return int(rows.rdd.getNumPartitions())

    assert tasks() == 2
    assert tasks(minPartitions=2) == 2
    assert tasks(minPartitions=4) >= 4
    assert tasks(maxRecordsPerPartition=2) == 3 + 2
    assert tasks(maxRecordsPerPartition=4, minPartitions=8) == 8


def test_a_task_reads_more_than_one_batch(table: Table, topics: Topics, fresh: Callable[[str], str]) -> None:
    from pyspark.sql import functions as of

    name = topics.create(fresh("many"), 2)
    for partition in (0, 1):
        topics.send(name, (Sent(value=b"%0200d" % number, partition=partition) for number in range(30_000)))

    rows = table({"subscribe": name})

    counts = rows.groupBy("partition").agg(
        of.count("*"),
        of.countDistinct("offset"),
        of.sum("offset"),
        of.sum(of.col("value").cast("string").cast("long")),
    )
    whole = sum(range(30_000))
    assert sorted(tuple(row) for row in counts.collect()) == [
        (0, 30_000, 30_000, whole, whole),
        (1, 30_000, 30_000, whole, whole),
    ]
    assert len(rows.limit(3).collect()) == 3
    assert rows.count() == 60_000


# --- filters


@pytest.fixture(params=["true", "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark offers filters to readers, or does not."""
    spark.conf.set(PUSHDOWN, request.param)
    yield
    spark.conf.unset(PUSHDOWN)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("partition = 1", ["1-0", "1-1", "1-2"]),
        ("topic = 'other'", []),
        ("topic LIKE 'fil%' AND partition IN (0, 2)", ["0-0", "0-1", "0-2", "0-3", "0-4"]),
        ("offset > 0 AND offset < 2", ["0-1", "1-1"]),
        ("offset = 2 AND value = '1-2'", ["1-2"]),
        ("partition NOT IN (0, NULL)", []),
        ("timestamp > '2020-01-01'", names(5, 3)),
        ("timestamp > '2199-01-01'", []),
    ],
)
def test_a_filter_leaves_the_same_rows_whether_it_is_offered_or_not(
    table: Table, pushdown: None, filled: str, condition: str, wanted: list[str]
) -> None:
    assert values(table({"subscribe": filled}).where(condition)) == wanted


@pytest.mark.slice
def test_a_filter_of_one_query_does_not_reach_the_others_of_a_table(
    table: Table, pushdown: None, filled: str
) -> None:
    rows = table({"subscribe": filled})
    assert [rows.count(), rows.where("partition = 1").count(), rows.count()] == [8, 3, 8]

    rows = table({"subscribe": filled})
    first, none = rows.where("partition = 0 AND offset < 2"), rows.where("timestamp > '2199-01-01'")
    assert [none.count(), first.count(), rows.count()] == [0, 2, 8]
    assert values(first.union(rows)) == sorted([*names(2), *names(5, 3)])
    assert rows.join(first, ["partition", "offset"]).count() == 2
    assert first.intersect(rows).count() == 2


# --- settings of Kafka


def test_settings_of_kafka_reach_the_consumer(table: Table, filled: str) -> None:
    found = table(
        {"subscribe": filled, "kafka.fetch.max.bytes": 100, "kafka.max.partition.fetch.bytes": 70,
         "kafka.isolation.level": "read_committed", "kafka.group.id": "a-label", "groupIdPrefix": "also",
         "kafkaConsumer.pollTimeoutMs": 20_000, "fetchOffset.numRetries": 1,
         "fetchOffset.retryIntervalMs": 5},
    )  # fmt: skip

    assert values(found) == names(5, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kafka.auto.offset.reset", "cannot be set: use startingOffsets"),
        ("kafka.enable.auto.commit", "cannot be set: the checkpoint stores the offsets"),
        ("kafka.value.deserializer", "cannot be set: values are bytes"),
        ("kafka.fetch.max.bytes", "an option kafka.*: "),
    ],
)
def test_invalid_settings_are_rejected(table: Table, filled: str, name: str, words: str) -> None:
    with pytest.raises(Exception, match="OptionError") as failure:
        table({"subscribe": filled, name: "x"}).collect()
    assert words in message(failure)


def test_brokers_that_do_not_answer_are_an_error_in_good_time(table: Table, filled: str) -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        table(
            {"subscribe": filled, "kafka.bootstrap.servers": "127.0.0.1:1", "fetchOffset.numRetries": 0,
             "kafka.bootstrap.timeout.ms": 500}
        ).collect()  # fmt: skip


@pytest.mark.slice
def test_a_batch_that_cannot_be_read_fails_the_query_unless_its_loss_is_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    batch = next(each for each in crafted_batches() if not each.is_legal)
    with BrokerProcess(tmp_path / "broker") as broker:
        serve_crafted(broker, "crafted", [batch])
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap_servers)
        reader = reader.option("subscribe", "crafted")

        with pytest.raises(Exception, match=f"crafted-0 at offset {batch.expected_offsets[-1] + 1}: "):
            reader.load().collect()
        left = reader.option("failOnDataLoss", "false").load().orderBy("offset").collect()
    assert [row.offset for row in left] == [*batch.expected_offsets, *batch.offsets_behind]


# --- values


@pytest.mark.slice
def test_json_is_decoded_and_malformed_values_are_kept_aside(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    name = topics.create(fresh("json"))
    good = b'{"id": 1, "at": "2026-01-02T03:04:05Z", "tags": ["x"], "by": {"name": "josef"}, "m": 1}'
    topics.send(name, [Sent(value=value) for value in (good, b"{", None, b'{"id": "1"}')])
    options = {
        "subscribe": name, "value.format": "json",
        "value.schema": "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, by STRUCT<name: STRING>",
    }  # fmt: skip

    rows = table(options).orderBy("offset").collect()
    assert rows[0].value.asDict(recursive=True) == {
        "id": 1, "at": datetime(2026, 1, 2, 3, 4, 5), "tags": ["x"], "by": {"name": "josef"}
    }  # fmt: skip
    assert [row.value is None for row in rows] == [False, True, True, True]
    assert [row.value_raw for row in rows] == [None, b"{", None, b'{"id": "1"}']
    assert [row.value_error is None for row in rows] == [True, False, True, False]
    assert table(options).select("value.by.name").first() == ("josef",)

    dropped = table(options | {"value.mode": "DROPMALFORMED"}).orderBy("offset").collect()
    assert [row.offset for row in dropped] == [0, 2]
    with pytest.raises(Exception, match=r"a value is not json of value\.schema"):
        table(options | {"value.mode": "FAILFAST"}).collect()


@pytest.mark.slice
def test_json_is_decoded_as_pipelines_decode_it_with_from_json(
    table: Table, topics: Topics, fresh: Callable[[str], str]
) -> None:
    from pyspark.sql import functions

    tokens = {
        "n": ["1.255", "-0.005", '"2.675"', "1e2", "12345678.994", "123456789", "true", '"x"', "null"],
        "t": [
            '"2026-01-02T03:04:05.123456789Z"', '"2026-01-02 03:04:05"', '"2026-01-02T03:04:05+02:00"',
            '"2026-01-02"', '"2026-02-30"', '"tomorrow"', "true",
        ],
        "d": ['"2026-01-02"', '"2026-02-30"', '"soon"'],
        "i": ["1", "1.5", "9223372036854775808", '"x"'],
        "f": ["1", "1e400", "0.1", '"x"'],
        "m": ['{"a": 1}', "{}", '{"a": "x"}', "[]"],
    }  # fmt: skip
    values = [f'{{"{name}": {token}}}' for name, given in tokens.items() for token in given]
    topic = topics.create(fresh("json"))
    topics.send(topic, [Sent(value=value.encode(), partition=0) for value in values])
    columns = "n DECIMAL(10, 2), t TIMESTAMP, d DATE, i BIGINT, f DOUBLE, m MAP<STRING, BIGINT>"
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}

    raw = table({"subscribe": topic}).orderBy("offset")
    parsed = functions.from_json(raw.value.cast("string"), f"{columns}, broken STRING", options)
    wanted = [row.parsed.asDict() for row in raw.select(parsed.alias("parsed")).collect()]
    for without_map in (False, True):
        schema = columns.partition(", m ")[0] if without_map else columns
        given = {"subscribe": topic, "value.format": "json", "value.schema": schema}
        found = table(given).orderBy("offset").collect()
        for text, row, by_spark in zip(values, found, wanted, strict=True):
            if without_map and text.startswith('{"m"'):
                continue
            assert (row.value is None) is (by_spark["broken"] is not None), text
            if row.value is not None:
                names = [name for name in by_spark if name in row.value]
                assert [row.value[name] for name in names] == [by_spark[name] for name in names], text


def test_messagepack_and_avro_are_decoded(table: Table, topics: Topics, fresh: Callable[[str], str]) -> None:
    name = topics.create(fresh("packed"))
    topics.send(name, [Sent(value=msgpack.packb({"id": 7, "price": 1.5}))])
    options = {"subscribe": name, "value.format": "msgpack", "value.schema": "id INT, price DOUBLE"}
    assert table(options).select("value.*").collect() == [(7, 1.5)]

    name = topics.create(fresh("avro"))
    schema = {
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "int"}, {"name": "counts", "type": {"type": "map", "values": "long"}}
        ],
    }  # fmt: skip
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), {"id": 7, "counts": {"a": 1}})
    topics.send(name, [Sent(value=written.getvalue())])
    options = {"subscribe": name, "value.format": "avro", "value.schema": json.dumps(schema)}
    assert table(options).select("value.*").collect() == [(7, {"a": 1})]
