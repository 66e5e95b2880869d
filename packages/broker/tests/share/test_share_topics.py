"""Share groups over topics that change: one that is compacted, and one that is deleted and made again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from ottla.broker.testing import BrokerThread

BOUND_S = 60.0
SETTINGS = {"group.share.heartbeat.interval.ms": "500", "log.cleaner.backoff.ms": "100"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.01",
}
KEYS, ROUNDS = 20, 15


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as broker:
        yield broker


def begins_at_the_start(broker: BrokerThread, group: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(BOUND_S)
    return admin


def consumed(broker: BrokerThread, group: str, topic: str, last: str) -> list[tuple[str, str]]:
    """Read and accept until a value comes."""
    found: list[tuple[str, str]] = []
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    deadline = time.monotonic() + BOUND_S
    while not any(value == last for _, value in found) and time.monotonic() < deadline:
        found += [(message.key().decode(), message.value().decode()) for message in consumer.poll(0.5)]
    consumer.commit_sync(BOUND_S)
    consumer.close()
    return found


def records_of(broker: BrokerThread, topic: str) -> list[tuple[str, str]]:
    """All that the log has, as a consumer that belongs to no group reads it."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none",
                         "enable.partition.eof": True})  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, str]] = []
    while True:
        message = consumer.poll(BOUND_S)
        assert message is not None
        if message.error():
            break
        found.append((message.key().decode(), message.value().decode()))
    consumer.close()
    return found


def until_compacted(broker: BrokerThread, topic: str, most: int) -> list[tuple[str, str]]:
    deadline = time.monotonic() + BOUND_S
    while len(found := records_of(broker, topic)) > most:
        assert time.monotonic() < deadline, f"{len(found)} records are left"
    return found


def test_of_a_compacted_topic_each_record_that_is_left_comes_once(broker: BrokerThread) -> None:
    admin = begins_at_the_start(broker, "compacted")
    admin.create_topics([NewTopic("c", 1, 1, config=COMPACTED)])["c"].result(BOUND_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(ROUNDS):
        for key in range(KEYS):
            producer.produce("c", key=str(key), value=f"{key}-{number}")
        producer.flush(BOUND_S)
    producer.produce("c", key="end", value="last")
    producer.flush(BOUND_S)
    left = until_compacted(broker, "c", KEYS * ROUNDS // 2)

    found = consumed(broker, "compacted", "c", "last")

    assert len(left) < KEYS * ROUNDS
    assert {f"{key}-{ROUNDS - 1}" for key in range(KEYS)} <= {value for _, value in found}
    assert len(found) == len(set(found)), "a record came twice"
    assert set(found) <= set(left)
    producer.produce("c", key="end", value="after")
    producer.flush(BOUND_S)
    assert consumed(broker, "compacted", "c", "after") == [("end", "after")]


def test_a_topic_that_is_deleted_and_made_again_is_read_from_its_beginning(broker: BrokerThread) -> None:
    admin = begins_at_the_start(broker, "again")
    values = {}
    for life in ("first", "second"):
        admin.create_topics([NewTopic("d", 1, 1)])["d"].result(BOUND_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(5):
            producer.produce("d", key=life, value=f"{life}-{number}")
        producer.flush(BOUND_S)
        values[life] = [value for _, value in consumed(broker, "again", "d", f"{life}-4")]
        if life == "first":
            admin.delete_topics(["d"])["d"].result(BOUND_S)

    assert values == {life: [f"{life}-{number}" for number in range(5)] for life in ("first", "second")}
