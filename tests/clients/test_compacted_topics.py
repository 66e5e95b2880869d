"""Compacted topics with real clients: the broker compacts while they write, and they read what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster, BrokerProcess

pytestmark = pytest.mark.timeout(240)

BOUND_S: Final = 90
TOPIC: Final = "prices"
SETTINGS: Final = {"log_cleaner_backoff_ms": 50, "log_flush_scheduler_interval_ms": 100}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
}
KEYS: Final = 50


def create(servers: str, name: str = TOPIC, replicas: int = 1) -> None:
    topic = NewTopic(name, num_partitions=1, replication_factor=replicas, config=COMPACTED)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([topic])[name].result(30)


def write(servers: str, codec: str = "none", *, rounds: int = 40, **how: object) -> dict[bytes, bytes | None]:
    """Write new values of all keys again and again; every tenth key ends with a tombstone."""
    last: dict[bytes, bytes | None] = {}
    producer = Producer({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 2, **how})
    for number in range(rounds):
        for key in (b"%s-%d" % (codec.encode(), one) for one in range(KEYS)):
            is_deleted = number == rounds - 1 and key.endswith(b"0")
            last[key] = None if is_deleted else b"%d" % number * 20
            producer.produce(TOPIC, key=key, value=last[key])
        producer.flush(30)
    return last


def read(servers: str, topic: str = TOPIC) -> list[Message]:
    """All records of the topic, from the beginning."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + BOUND_S
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            error = message.error() if message is not None else None
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            if message is not None and error is None:
                found.append(message)
    finally:
        consumer.close()
    raise TimeoutError(f"{len(found)} records and no end")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def state_of(messages: list[Message]) -> dict[bytes, bytes | None]:
    state: dict[bytes, bytes | None] = {}
    for one in messages:
        key = one.key()
        assert isinstance(key, bytes)
        state[key] = one.value()
    return state


@pytest.mark.ottla_broker(**SETTINGS)
def test_a_consumer_finds_the_last_value_of_each_key(ottla_broker_process: BrokerProcess) -> None:
    servers = ottla_broker_process.bootstrap_servers
    create(servers)
    last: dict[bytes, bytes | None] = {}
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        last |= write(servers, codec, **{"enable.idempotence": codec != "lz4"})
    written = 5 * 40 * KEYS

    until(lambda: len(read(servers)) < written / 2)
    messages = read(servers)
    offsets = [one.offset() for one in messages]

    assert state_of(messages) == last
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == written - 1

    ottla_broker_process.kill()
    ottla_broker_process.restart()
    assert state_of(read(servers)) == last
    last |= write(servers, rounds=2)
    assert state_of(read(servers)) == last


@pytest.mark.ottla_broker(**SETTINGS)
def test_a_record_without_key_is_refused(ottla_broker_process: BrokerProcess) -> None:
    servers = ottla_broker_process.bootstrap_servers
    create(servers)
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": servers})

    producer.produce(TOPIC, value=b"no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)

    assert [one.code() for one in errors if one is not None] == [KafkaError.INVALID_RECORD]
    assert read(servers) == []


@pytest.mark.ottla_broker(offsets_topic_num_partitions=1, offsets_topic_segment_bytes=20_000, **SETTINGS)
def test_the_topic_of_committed_offsets_stays_small(ottla_broker_process: BrokerProcess) -> None:
    servers = ottla_broker_process.bootstrap_servers
    create(servers)
    write(servers, rounds=1)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "often", "enable.auto.commit": False})
    for offset in range(600):
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset % KEYS + 1)], asynchronous=False)

    until(lambda: len(read(servers, "__consumer_offsets")) < 300)

    ottla_broker_process.kill()
    ottla_broker_process.restart()
    until(lambda: consumer.committed([TopicPartition(TOPIC, 0)], 30)[0].offset == 599 % KEYS + 1)
    consumer.close()


def test_followers_copy_across_gaps_and_compact_by_themselves(tmp_path: Path) -> None:
    settings = {key.replace("_", "."): str(value) for key, value in SETTINGS.items()}
    with BrokerCluster(tmp_path, settings) as cluster:
        servers = cluster.bootstrap_servers
        create(servers, replicas=3)
        last = write(servers)
        until(lambda: len(read(servers)) < 20 * KEYS)
        cluster.brokers[1].kill()
        last |= write(servers, rounds=30)
        until(lambda: len(read(servers)) < 20 * KEYS)
        cluster.brokers[1].restart()
        last |= write(servers, rounds=3, acks="all")

        # A leader that starts again knows the high watermark of its last checkpoint, and a reader meets an
        # end there, until the followers have fetched.
        for broker in list(cluster.brokers.values()):
            until(lambda: state_of(read(servers)) == last)
            broker.kill()
            broker.restart()
        until(lambda: state_of(read(servers)) == last)
