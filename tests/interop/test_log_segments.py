"""Segments that Apache Kafka has written: row for row what its broker gives, transactions and all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipeline.segments.data_source import SegmentsReader
from ottla.pipeline.source.readers import BatchReader
from ottla.producer import SyncProducer
from ottla.producer.config import CompressionType
from ottla.protocol.storage.checkpoints import decode_offset_checkpoint
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import ApacheKafka
from peers.kraft_kafka import KraftKafka
from peers.topics import Sent, Topics

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

CODECS: tuple[CompressionType, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "accounts"
PARTITIONS = 2
WAIT_S = 60
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
# What Spark makes of the columns; these readers are asked without it.
SCHEMA = StructType(
    [
        StructField("key", BinaryType()), StructField("value", BinaryType()),
        StructField("topic", StringType()), StructField("partition", IntegerType()),
        StructField("offset", LongType()), StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()), StructField("headers", ArrayType(_HEADER)),
    ]
)  # fmt: skip
NO_HEADERS = StructType(SCHEMA.fields[:-1])
SETTINGS = {
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "log.cleaner.backoff.ms": "200",
}

Row = dict[str, Any]
Kafka = ApacheKafka | KraftKafka


@pytest.fixture(scope="module", params=["3.9", "4.1"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker with transactions that were committed, aborted, and one that is open."""
    folder = tmp_path_factory.mktemp("kafka")
    made: Kafka = (
        ApacheKafka(folder, SETTINGS, heap="512m") if request.param == "3.9" else KraftKafka(folder, SETTINGS)
    )
    with made as running:
        with Topics(running.bootstrap_servers) as topics:
            topics.create(TOPIC, PARTITIONS, **small_segments(running, 20_000))
        write_transactions(running.bootstrap_servers)
        with SyncProducer(running.bootstrap_servers, transactional_id="open") as producer:
            producer.begin_transaction()
            send(producer, "open", 20)
            producer.flush()
            write_plain(running.bootstrap_servers)
            yield running
            producer.abort_transaction()


def small_segments(kafka: Kafka, size: int) -> dict[str, str]:
    """Return a setting for topics; Kafka 4 takes less than a megabyte only by a name for its own tests."""
    name = "segment_bytes" if isinstance(kafka, ApacheKafka) else "internal_segment_bytes"
    return {name: str(size)}


def write_transactions(servers: str) -> None:
    for codec in CODECS:
        with (
            SyncProducer(servers, transactional_id=f"one-{codec}", compression_type=codec) as one,
            SyncProducer(servers, transactional_id=f"other-{codec}", compression_type=codec) as other,
        ):
            for number in range(8):
                one.begin_transaction()
                other.begin_transaction()
                send(one, f"{codec} one {number}", 30)
                send(other, f"{codec} other {number}", 30)
                one.abort_transaction() if number % 3 == 0 else one.commit_transaction()
                other.abort_transaction() if number % 4 == 1 else other.commit_transaction()


def write_plain(servers: str) -> None:
    with SyncProducer(servers) as producer:
        for number in range(20):
            send(producer, f"plain {number}", 40)


def send(producer: SyncProducer, what: str, count: int) -> None:
    """Send records to every partition, and see that they are written."""
    sent = [
        producer.send(
            TOPIC,
            None if number % 10 == 9 else f"{what} {number} ".encode() * 4,
            f"{number}".encode() if number % 2 else None,
            number % PARTITIONS,
            headers=[("what", what.encode()), ("none", None)] if number % 3 == 0 else None,
        )
        for number in range(count)
    ]
    for each in sent:
        each.result()


def data_of(kafka: Kafka) -> Path:
    return kafka.data_dir / "data"


def closed(kafka: Kafka) -> dict[str, int]:
    """Where the closed segments of each partition end."""
    folders = {str(each): data_of(kafka) / f"{TOPIC}-{each}" for each in range(PARTITIONS)}
    return {number: max(int(log.stem) for log in folder.glob("*.log")) for number, folder in folders.items()}


def until_noted(kafka: Kafka) -> None:
    """Wait until the broker has noted that all of it is replicated."""
    path = data_of(kafka) / "replication-offset-checkpoint"
    wanted = {TopicPartition(TOPIC, int(number)): end for number, end in closed(kafka).items()}
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = decode_offset_checkpoint(path.read_bytes()) if path.exists() else {}
        if all(found.get(each, -1) >= end for each, end in wanted.items()):
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} never said {wanted}")


def rows(reader: SegmentsReader | BatchReader) -> list[Row]:
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def through_the_broker(kafka: Kafka, level: str, **options: str) -> list[Row]:
    given = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": TOPIC, "includeHeaders": "true",
        "kafka.isolation.level": level,
    }  # fmt: skip
    return rows(BatchReader(given | options, SCHEMA))


def from_segments(path: Path, level: str, **options: str) -> list[Row]:
    given = {"path": str(path), "topics": TOPIC, "includeHeaders": "true", "isolation.level": level}
    return rows(SegmentsReader(given | options, SCHEMA))


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("cut", ["1k", "128m"])
def test_rows_are_those_of_the_broker_one_by_one(kafka: Kafka, level: str, cut: str) -> None:
    until_noted(kafka)
    ends = closed(kafka)

    wanted = through_the_broker(kafka, level)
    wanted = [row for row in wanted if row["offset"] < ends[str(row["partition"])]]
    found = from_segments(data_of(kafka), level, maxBytesPerTask=cut)

    assert len(found) > 1_000
    assert found == wanted


def test_what_is_aborted_or_open_makes_a_difference(kafka: Kafka) -> None:
    until_noted(kafka)
    committed = from_segments(data_of(kafka), "read_committed")
    every = from_segments(data_of(kafka), "read_uncommitted")

    assert len(list(data_of(kafka).glob(f"{TOPIC}-*/*.txnindex"))) > 0
    aborted = [row for row in every if b"gzip one 3 " in (row["value"] or b"")]
    assert aborted
    assert not any(row in committed for row in aborted)
    assert any(b"plain" in (row["value"] or b"") for row in every)
    assert not any(b"plain" in (row["value"] or b"") for row in committed)


def test_the_active_segment_ends_where_the_broker_does(kafka: Kafka) -> None:
    until_noted(kafka)
    for level in ("read_committed", "read_uncommitted"):
        found = from_segments(data_of(kafka), level, includeActive="true")
        assert found == through_the_broker(kafka, level)


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_logs_copied_alone_say_the_same(kafka: Kafka, level: str, tmp_path: Path) -> None:
    until_noted(kafka)
    for log in data_of(kafka).glob(f"{TOPIC}-*/*.log"):
        folder = tmp_path / log.parent.name
        folder.mkdir(exist_ok=True)
        (folder / log.name).write_bytes(log.read_bytes())

    assert from_segments(tmp_path, level) == from_segments(data_of(kafka), level)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_times_lead_to_the_same_records(kafka: Kafka, share: float) -> None:
    until_noted(kafka)
    every = through_the_broker(kafka, "read_uncommitted")
    at = int(every[int(len(every) * share)]["timestamp"].timestamp() * 1_000)
    ends = {"endingOffsets": json.dumps({TOPIC: closed(kafka)})}

    strategy: Mapping[str, str] = {"startingOffsetsByTimestampStrategy": "latest"}
    later = {"startingTimestamp": str(at), **strategy}
    found = from_segments(data_of(kafka), "read_uncommitted", **later)
    assert found == through_the_broker(kafka, "read_uncommitted", **later, **ends)
    earlier = from_segments(data_of(kafka), "read_uncommitted", endingTimestamp=str(at), includeActive="true")
    assert earlier == through_the_broker(kafka, "read_uncommitted", endingTimestamp=str(at))


def test_a_compacted_topic_has_the_rows_that_are_left(kafka: Kafka) -> None:
    name, count = "compacted", 800
    with Topics(kafka.bootstrap_servers, batch_size=2_000) as topics:
        topics.create(
            name,
            1,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.01",
            **small_segments(kafka, 5_000),
        )
        topics.send(name, [Sent(key=b"%d" % (index % 20), value=b"%d" % index) for index in range(count)])
    broker = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name}
    deadline = time.monotonic() + WAIT_S
    while len(wanted := rows(BatchReader(broker, NO_HEADERS))) == count and time.monotonic() < deadline:
        time.sleep(0.2)

    # The active segment is never compacted, and another pass may come between the two.
    found = rows(SegmentsReader({"path": str(data_of(kafka)), "topics": name}, NO_HEADERS))
    closed_until = max(int(log.stem) for log in (data_of(kafka) / f"{name}-0").glob("*.log"))
    assert 0 < len(found) < closed_until
    assert [row for row in wanted if row in found] == found
