"""An Ottla broker takes over the log directory of a stopped Apache Kafka 3.9, and Kafka's tools read ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import ApacheKafka, ZooKeeper, run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]


def produce(servers: str, topic: str, values: list[bytes]) -> None:
    """Produce in batches that are smaller than a segment; all must be acknowledged."""
    failures: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "batch.num.messages": 50,
        }
    )
    for value in values:
        producer.produce(
            topic, value, key=value, partition=0, on_delivery=lambda error, _: failures.append(error)
        )
    assert producer.flush(30) == 0
    assert [failure for failure in failures if failure is not None] == []


def read(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "takeover", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        values += [message.value() for message in consumer.consume(count - len(values), timeout=1)]
    consumer.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    consumer.close()
    return values


def test_a_directory_written_by_apache_kafka_is_served(tmp_path: Path) -> None:
    settings = {"log.segment.bytes": "20000", "num.partitions": "1", "offsets.topic.num.partitions": "4"}
    values = [b"value %d" % number for number in range(2000)]
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        with ApacheKafka(tmp_path / "kafka", settings, zookeeper=zookeeper) as kafka:
            produce(kafka.bootstrap_servers, "taken", values)
            assert read(kafka.bootstrap_servers, "taken", len(values)) == values

        ours = {
            **settings,
            "broker.id": "1",
            "zookeeper.connect": zookeeper.connect_string,
            "log.dirs": str(tmp_path / "kafka" / "data"),
        }
        with BrokerProcess(tmp_path / "ottla", ours) as broker:
            assert read(broker.bootstrap_servers, "taken", len(values)) == values
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "takeover"})
            committed = consumer.committed([TopicPartition("taken", 0)], timeout=20)
            consumer.close()
            assert committed[0].offset == len(values)
            produce(broker.bootstrap_servers, "taken", [b"more"])
            assert read(broker.bootstrap_servers, "taken", len(values) + 1) == [*values, b"more"]

        with ApacheKafka(tmp_path / "kafka", settings, zookeeper=zookeeper) as kafka:
            assert read(kafka.bootstrap_servers, "taken", len(values) + 1) == [*values, b"more"]


def damage(segment: Path) -> None:
    """Change the last byte of the batch in the middle of a segment.

    Not just any byte there: the checksum of a batch covers neither its offset nor its leader epoch.
    """
    content, end = bytearray(segment.read_bytes()), 0
    while end <= len(content) // 2:
        end += 12 + int.from_bytes(content[end + 8 : end + 12])
    content[end - 1] ^= 0xFF
    segment.write_bytes(content)


def test_apache_kafka_takes_no_notice_of_the_bytes_that_our_recovery_cut_off(tmp_path: Path) -> None:
    values = [b"value %d" % number for number in range(2000)]
    data = tmp_path / "kafka" / "data"
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        ours = {"broker.id": "1", "zookeeper.connect": zookeeper.connect_string, "log.dirs": str(data)}
        ours |= {"num.partitions": "1", "offsets.topic.num.partitions": "4"}
        with BrokerProcess(tmp_path / "ottla", ours) as broker:
            produce(broker.bootstrap_servers, "damaged", values)
            broker.kill()
            damage(data / "damaged-0" / f"{0:020d}.log")
            broker.start()
            left = read(broker.bootstrap_servers, "damaged", 1000)
            words = broker.log_file.read_text()
        assert left == values[: len(left)]
        assert 500 < len(left) < 1500
        [kept] = (data / "damaged-0").glob("*.cut")
        bytes_kept = kept.read_bytes()
        assert "batches in them" in words
        assert "look whole" in words
        assert f"they are kept for a day in {kept.name}" in words

        with ApacheKafka(
            tmp_path / "kafka", {"offsets.topic.num.partitions": "4"}, zookeeper=zookeeper
        ) as kafka:
            assert read(kafka.bootstrap_servers, "damaged", len(left)) == left
            produce(kafka.bootstrap_servers, "damaged", [b"more"])
            assert read(kafka.bootstrap_servers, "damaged", len(left) + 1) == [*left, b"more"]
        assert kept.read_bytes() == bytes_kept


def test_kafkas_log_dump_reads_our_segments(broker: BrokerProcess) -> None:
    produce(broker.bootstrap_servers, "dumped", [b"value %d" % number for number in range(1000)])
    segments = sorted((broker.data_dir).rglob("dumped-0/*.log"))

    printed = run_tool(
        "kafka.tools.DumpLogSegments",
        "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, segments)),
    )  # fmt: skip

    assert segments
    assert printed.count("payload: value ") == 1000
    assert "isvalid: false" not in printed
