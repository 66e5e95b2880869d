"""kafka-python, unmodified: as it is today, and speaking the protocol of Kafka 0.8.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def produce_all(topic: str, values: list[bytes], **config: Any) -> list[int]:
    with_defaults = {"linger_ms": 5, **config}
    producer = KafkaProducer(**with_defaults)
    try:
        futures = [producer.send(topic, value, key=b"k", partition=0) for value in values]
        producer.flush(30)
        return [future.get(30).offset for future in futures]
    finally:
        producer.close(10)


def read(topic: str, count: int, **config: Any) -> list[Any]:
    consumer = KafkaConsumer(auto_offset_reset="earliest", enable_auto_commit=False, **config)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        return poll_until(consumer, count)
    finally:
        consumer.close()


def poll_until(consumer: Any, count: int, timeout_s: float = 30) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} of {count} came"
        for batch in consumer.poll(timeout_ms=500).values():
            records.extend(batch)
    return records


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_arrives_in_order(servers: str, fresh: Callable[[str], str], codec: str | None) -> None:
    topic = fresh("python-codec")
    values = [f"value {number}".encode() for number in range(300)]

    offsets = produce_all(topic, values, bootstrap_servers=servers, compression_type=codec)
    records = read(topic, 300, bootstrap_servers=servers)

    assert offsets == list(range(300))
    assert [record.value for record in records] == values


@pytest.mark.parametrize("codec", [None, "gzip", "snappy"])
def test_a_client_of_kafka_0_8_1_produces_and_fetches(
    servers: str, fresh: Callable[[str], str], codec: str | None
) -> None:
    topic = fresh("python-081")
    old: dict[str, Any] = {"bootstrap_servers": servers, "api_version": (0, 8, 1)}
    values = [f"value {number}".encode() for number in range(200)]

    offsets = produce_all(topic, values, compression_type=codec, enable_idempotence=False, acks=1, **old)
    records = read(topic, 200, group_id=None, **old)

    assert offsets == list(range(200))
    assert [record.value for record in records] == values
    assert [record.value for record in read(topic, 200, bootstrap_servers=servers)] == values


def test_headers_and_timestamps_come_back(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("python-headers")
    producer = KafkaProducer(bootstrap_servers=servers)
    producer.send(topic, b"v", partition=0, headers=[("h", b"1")], timestamp_ms=1_600_000_000_000).get(20)
    producer.close(10)

    record = read(topic, 1, bootstrap_servers=servers)[0]

    assert record.headers == [("h", b"1")]
    assert record.timestamp == 1_600_000_000_000


def test_a_group_continues_from_its_committed_offsets(servers: str, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("python-group"), fresh("group")
    produce_all(topic, [b"%d" % number for number in range(10)], bootstrap_servers=servers)
    config: dict[str, Any] = {
        "bootstrap_servers": servers,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    first = KafkaConsumer(topic, **config)
    seen = [record.value for record in poll_until(first, 10)]
    first.commit()
    first.close()
    produce_all(topic, [b"last"], bootstrap_servers=servers)

    second = KafkaConsumer(topic, **config)
    rest = [record.value for record in poll_until(second, 1)]
    second.close()

    assert seen == [b"%d" % number for number in range(10)]
    assert rest == [b"last"]


def test_the_admin_client_does_its_rounds(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("python-admin")
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([NewTopic(topic, 2, 1)])
        assert topic in admin.list_topics()
        assert len(admin.describe_topics([topic])[0]["partitions"]) == 2
        assert admin.describe_cluster()["brokers"]
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
    finally:
        admin.close()
