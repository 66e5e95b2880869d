"""Segments as tables, on real Spark: row for row what the broker gives."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.producer import SyncProducer
from ottla.producer.config import CompressionType
from ottla.protocol.storage.checkpoints import decode_offset_checkpoint
from ottla.protocol.topics import TopicPartition
from peers.snippets import ROOT, blocks, run_python
from peers.topics import Sent, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

CODECS: tuple[CompressionType, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_700_000_000_000
COUNT = 3_000
PAGE = ROOT / "docs" / "howto" / "backfill-from-log-files.md"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
WAIT_S = 30
BATCH_BYTES = 2_000
"""The most bytes of a batch: several go into a segment, and even on a slow machine one does."""
SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}

Options = Mapping[str, object]


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that notes offsets beside its logs all the time."""
    with BrokerProcess(tmp_path_factory.mktemp("noting"), SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def its_topics(noting: BrokerProcess) -> Iterator[Topics]:
    with Topics(noting.bootstrap_servers, BATCH_BYTES) as topics:
        yield topics


@pytest.fixture(scope="module")
def data(noting: BrokerProcess) -> Path:
    """The broker's log directory."""
    return noting.data_dir


@pytest.fixture(scope="module")
def orders(its_topics: Topics, noting: BrokerProcess, data: Path) -> str:
    """A topic of two partitions and many segments: every codec, null keys and values, headers."""
    name = its_topics.create("orders", 2, segment_bytes="5000")
    for codec in CODECS:
        with SyncProducer(
            noting.bootstrap_servers, compression_type=codec, linger_ms=5, batch_size=BATCH_BYTES
        ) as producer:
            sent = [
                producer.send(
                    name,
                    None if number % 50 == 7 else b"%s %d " % (codec.encode(), number) * 3,
                    None if number % 3 else b"key %d" % number,
                    number % 2,
                    FIRST_MS + number * 10,
                    [("codec", codec.encode()), ("codec", None)] if number % 5 == 0 else None,
                )
                for number in range(COUNT // len(CODECS))
            ]
            for each in sent:
                each.result()
    noted(data, {TopicPartition(name, 0): COUNT // 2, TopicPartition(name, 1): COUNT // 2})
    return name


@pytest.fixture
def segments(spark: SparkSession, data: Path) -> Callable[..., DataFrame]:
    """Make tables of segments: `segments({"topics": "orders"})`."""

    def segments(options: Options, path: Path | str = data) -> DataFrame:
        return spark.read.format("ottla-log").options(**options).load(str(path))

    return segments


@pytest.fixture
def topic_table(spark: SparkSession, noting: BrokerProcess) -> Callable[[Options], DataFrame]:
    """Make tables of topics of the same broker, read through it."""

    def table(options: Options) -> DataFrame:
        reader = spark.read.format("ottla").option("kafka.bootstrap.servers", noting.bootstrap_servers)
        return reader.options(**options).load()

    return table


def noted(data: Path, offsets: Mapping[TopicPartition, int], name: str = "replication") -> None:
    """Wait until the broker has noted offsets beside its logs."""
    path = data / f"{name}-offset-checkpoint"
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = decode_offset_checkpoint(path.read_bytes()) if path.exists() else {}
        if all(found.get(each) == offset for each, offset in offsets.items()):
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} never said {offsets}")


def closed(data: Path, topic: str, partition: int = 0) -> int:
    """Return the offset at which the closed segments of a partition end."""
    return max(int(each.stem) for each in (data / f"{topic}-{partition}").glob("*.log"))


def until_closed(data: Path, topic: str, partitions: int = 1) -> dict[str, str]:
    """Make the option that has a reader of the broker stop where closed segments end."""
    ends = {str(each): closed(data, topic, each) for each in range(partitions)}
    return {"endingOffsets": json.dumps({topic: ends})}


def rows(table: DataFrame) -> list[Row]:
    return sorted(table.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def message(failure: pytest.ExceptionInfo[Exception]) -> str:
    return " ".join(str(failure.value).split())


# --- the same rows


@pytest.mark.slice
def test_rows_are_those_of_the_broker_one_by_one(
    orders: str,
    data: Path,
    segments: Callable[..., DataFrame],
    topic_table: Callable[[Options], DataFrame],
) -> None:
    wanted = rows(
        topic_table({"subscribe": orders, "includeHeaders": "true", **until_closed(data, orders, 2)})
    )
    found = rows(segments({"topics": orders, "includeHeaders": "true"}))

    assert len(list((data / f"{orders}-0").glob("*.log"))) > 3
    assert COUNT // 2 < len(found) < COUNT
    assert found == wanted
    cut = segments({"topics": orders, "includeHeaders": "true", "maxBytesPerTask": "3k", "minPartitions": 20})
    assert cut.rdd.getNumPartitions() >= 20
    assert rows(cut) == wanted


def test_the_active_segment_is_read_when_it_is_asked_for(
    orders: str, segments: Callable[..., DataFrame], topic_table: Callable[[Options], DataFrame]
) -> None:
    found = rows(segments({"subscribe": orders, "includeActive": "true"}))

    assert len(found) == COUNT
    assert found == rows(topic_table({"subscribe": orders}))


def test_schema_and_columns_are_those_of_the_topics_source(
    orders: str, segments: Callable[..., DataFrame], topic_table: Callable[[Options], DataFrame]
) -> None:
    for options in ({}, {"includeHeaders": "true"}, {"value.format": "json", "value.schema": "id INT"}):
        ours = segments({"topics": orders, **options})
        assert ours.schema == topic_table({"subscribe": orders, **options}).schema


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": '{"orders": {"0": 333, "1": -2}}'},
        {"endingOffsets": '{"orders": {"0": 444, "1": 555}}'},
        {"startingTimestamp": str(FIRST_MS + 2_345), "endingTimestamp": str(FIRST_MS + 3_210)},
        {
            "startingOffsetsByTimestamp": json.dumps({"orders": {"0": FIRST_MS + 4_000, "1": FIRST_MS}}),
            "endingOffsetsByTimestamp": json.dumps({"orders": {"0": FIRST_MS + 5_555, "1": FIRST_MS + 50}}),
        },
    ],
)
def test_options_about_offsets_and_times_mean_the_same(
    orders: str,
    segments: Callable[..., DataFrame],
    topic_table: Callable[[Options], DataFrame],
    options: dict[str, str],
) -> None:
    found = rows(segments({"topics": orders, "includeActive": "true", **options}))

    assert 0 < len(found) < COUNT
    assert found == rows(topic_table({"subscribe": orders, **options}))


@pytest.mark.parametrize(
    "condition",
    [
        "offset >= 100 AND offset < 110",
        "partition = 1 AND offset = 321",
        "topic LIKE 'ord%' AND partition IN (0, 5)",
        "topic = 'bills'",
        "timestamp >= TIMESTAMP '2023-11-14 22:13:25'",
        "key IS NOT NULL AND value IS NULL",
    ],
)
def test_filters_keep_the_same_rows(
    orders: str,
    spark: SparkSession,
    segments: Callable[..., DataFrame],
    topic_table: Callable[[Options], DataFrame],
    condition: str,
) -> None:
    wanted = rows(topic_table({"subscribe": orders}).where(condition))
    assert rows(segments({"topics": orders, "includeActive": "true"}).where(condition)) == wanted
    assert bool(wanted) != ("bills" in condition)


@pytest.mark.parametrize("pushdown", ["true", "false"])
def test_a_filter_of_one_query_does_not_reach_the_others_of_a_table(
    orders: str, spark: SparkSession, segments: Callable[..., DataFrame], pushdown: str
) -> None:
    spark.conf.set(PUSHDOWN, pushdown)
    try:
        table = segments({"topics": orders, "includeActive": "true"})
        few = table.where("partition = 0 AND offset BETWEEN 100 AND 120")
        counts = [table.count(), few.count(), table.count(), few.union(table).count()]
    finally:
        spark.conf.unset(PUSHDOWN)

    assert counts == [COUNT, 21, COUNT, COUNT + 21]


def test_values_are_decoded(
    its_topics: Topics,
    data: Path,
    segments: Callable[..., DataFrame],
    fresh: Callable[[str], str],
) -> None:
    name = its_topics.create(fresh("drinks"))
    its_topics.send(name, [Sent(value=b'{"drink": "tea", "cups": %d}' % cups) for cups in range(5)])
    its_topics.send(name, [Sent(value=b"no json")])
    noted(data, {TopicPartition(name, 0): 6})

    options = {"value.format": "json", "value.schema": "drink STRING, cups INT", "includeActive": "true"}
    found = rows(segments({"topics": name, **options}))
    assert [(row.value.drink, row.value.cups) for row in found[:5]] == [("tea", cups) for cups in range(5)]
    assert (found[5].value, bytes(found[5].value_raw)) == (None, b"no json")


def test_deleted_records_are_not_read(
    its_topics: Topics,
    data: Path,
    segments: Callable[..., DataFrame],
    topic_table: Callable[[Options], DataFrame],
    fresh: Callable[[str], str],
) -> None:
    name = its_topics.create(fresh("deleted"), segment_bytes="5000")
    its_topics.fill(name, {0: 400})
    its_topics.delete_records({TopicPartition(name, 0): 123})
    noted(data, {TopicPartition(name, 0): 123}, "log-start")
    noted(data, {TopicPartition(name, 0): 400})

    found = rows(segments({"topics": name}))
    assert found[0].offset == 123
    assert found == rows(topic_table({"subscribe": name, **until_closed(data, name)}))


# --- places


def test_partitions_segments_and_lists_of_paths_are_read(
    orders: str, data: Path, spark: SparkSession, segments: Callable[..., DataFrame]
) -> None:
    whole = rows(segments({"topics": orders}))
    first = data / f"{orders}-0"

    assert rows(segments({}, first)) == [row for row in whole if row.partition == 0]
    assert rows(segments({}, f"file://{data}/{orders}-*")) == whole
    some = spark.read.format("ottla-log").load([str(first), str(data / f"{orders}-1")])
    assert rows(some) == whole
    logs = sorted(first.glob("*.log"))
    one = rows(segments({}, logs[1]))
    assert [row.offset for row in one] == list(range(int(logs[1].stem), int(logs[2].stem)))


def test_a_copy_is_read_without_its_broker(
    orders: str, data: Path, tmp_path: Path, segments: Callable[..., DataFrame]
) -> None:
    (tmp_path / f"{orders}-0").mkdir()
    for log in (data / f"{orders}-0").glob("*.log"):
        (tmp_path / f"{orders}-0" / log.name).write_bytes(log.read_bytes())

    wanted = [row for row in rows(segments({"topics": orders})) if row.partition == 0]
    assert rows(segments({}, tmp_path)) == wanted


# --- what goes wrong


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topics": "no-such"}, "no path contains topic 'no-such'"),
        ({"topic": "orders"}, "did you mean 'topics'?"),
        ({"endingOffsets": '{"orders": {"0": 99999, "1": -1}}', "topics": "orders"}, "not up to 99999"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "asks no broker"),
    ],
)
def test_invalid_options_are_explained(
    orders: str, segments: Callable[..., DataFrame], options: dict[str, str], expected: str
) -> None:
    with pytest.raises(Exception, match=r".") as failure:
        segments(options).collect()
    assert expected in message(failure)


def test_a_damaged_segment_is_named(
    orders: str, data: Path, tmp_path: Path, segments: Callable[..., DataFrame]
) -> None:
    (tmp_path / f"{orders}-0").mkdir()
    logs = sorted((data / f"{orders}-0").glob("*.log"))[:3]
    for log in logs:
        (tmp_path / f"{orders}-0" / log.name).write_bytes(log.read_bytes())
    damaged = tmp_path / f"{orders}-0" / logs[1].name
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 0xFF  # of a record: some bytes of a batch's header no checksum covers
    damaged.write_bytes(content)

    with pytest.raises(Exception, match=r".") as failure:
        segments({}, tmp_path).collect()
    assert f"{damaged} is damaged" in message(failure)


def test_there_is_no_stream_of_segments(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r".") as failure:
        rows = spark.readStream.format("ottla-log").load(str(data))
        query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        query.processAllAvailable()
    assert "for a stream use a broker" in message(failure)


# --- the page


def test_the_page_does_what_it_shows(
    spark: SparkSession, its_topics: Topics, data: Path, tmp_path: Path
) -> None:
    """The page's code, where the directory of this broker stands for the one that it names."""
    its_topics.create("page-views", 2, segment_bytes="5000")
    hour = int(datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp() * 1_000)
    for partition in (0, 1):
        views = [
            Sent(value=b'{"page": "/%d"}' % number, partition=partition, timestamp_ms=hour + number * 1_000)
            for number in range(300)
        ]
        its_topics.send("page-views", views)
    noted(data, {TopicPartition("page-views", each): 300 for each in (0, 1)})

    names: dict[str, Any] = {"__name__": "snippet", "spark": spark}
    shown = blocks(PAGE, "needs spark")
    assert shown
    for block in shown:
        code = block.code.replace("/var/lib/ottla/data", str(data)).replace("/lake", str(tmp_path / "lake"))
        run_python(code, names, PAGE, block.line)
    assert spark.read.parquet(str(tmp_path / "lake" / "page-views")).count() > 0
