"""confluent-kafka (librdkafka), unmodified: as it is today, and told that the broker is an old one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OLD_BROKERS = [
    {"api.version.request": False, "broker.version.fallback": "0.8.2"},
    {"api.version.request": False, "broker.version.fallback": "0.10.0"},
]


def produce_all(config: dict[str, Any], topic: str, values: list[bytes], **extra: Any) -> list[int]:
    """Produce in order to partition 0 and return the acknowledged offsets."""
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        failures.append(error) if error else offsets.append(message.offset())

    producer = Producer({"linger.ms": 5, **config})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered, **extra)
    assert producer.flush(30) == 0
    assert failures == []
    return offsets


def read(config: dict[str, Any], topic: str, count: int, timeout_s: float = 30) -> list[Any]:
    """Read `count` messages of partition 0 from its beginning."""
    consumer = Consumer({"group.id": f"read-{topic}", "enable.auto.commit": False, **config})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    try:
        while len(messages) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(messages), timeout=1):
                assert message.error() is None, message.error()
                messages.append(message)
    finally:
        consumer.close()
    return messages


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_every_codec_arrives_in_order_with_headers_and_timestamps(
    servers: str, fresh: Callable[[str], str], codec: str, idempotent: bool
) -> None:
    topic = fresh("confluent-codec")
    config = {"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": idempotent}
    values = [f"value {number} {'x' * 100}".encode() for number in range(500)]

    offsets = produce_all(
        config, topic, values, key=b"k", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_123
    )
    messages = read({"bootstrap.servers": servers, "check.crcs": True}, topic, len(values))

    assert offsets == list(range(500))
    assert [message.value() for message in messages] == values
    assert messages[0].headers() == [("a", b"1"), ("b", None)]
    assert messages[0].timestamp() == (1, 1_700_000_000_123)
    assert messages[0].key() == b"k"


@pytest.mark.parametrize("old", OLD_BROKERS, ids=lambda old: str(old["broker.version.fallback"]))
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_a_client_that_believes_in_an_old_broker_produces_and_fetches(
    servers: str, fresh: Callable[[str], str], old: dict[str, Any], codec: str
) -> None:
    topic = fresh("confluent-old")
    config = {"bootstrap.servers": servers, "log_level": 0, **old}
    values = [f"old {number}".encode() for number in range(300)]

    assert produce_all({**config, "compression.type": codec}, topic, values) == list(range(300))

    assert [message.value() for message in read(config, topic, 300)] == values
    assert [message.value() for message in read({"bootstrap.servers": servers}, topic, 300)] == values


@pytest.mark.parametrize("old", OLD_BROKERS, ids=lambda old: str(old["broker.version.fallback"]))
def test_an_old_client_reads_what_a_new_one_wrote(
    servers: str, fresh: Callable[[str], str], old: dict[str, Any]
) -> None:
    topic = fresh("confluent-down")
    values = [f"new {number}".encode() for number in range(300)]
    produce_all(
        {"bootstrap.servers": servers, "compression.type": "gzip"}, topic, values, headers=[("h", b"v")]
    )

    messages = read({"bootstrap.servers": servers, "log_level": 0, **old}, topic, 300)

    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(300))


def test_two_members_share_a_topic_and_one_takes_over_when_the_other_leaves(
    servers: str, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("confluent-group"), fresh("group")
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=4)])[topic].result(20)
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }
    first, second = Consumer(config), Consumer(config)
    try:
        first.subscribe([topic])
        second.subscribe([topic])
        wait_for(lambda: (len(first.assignment()), len(second.assignment())) == (2, 2), first, second)
        parts = {one.partition for one in first.assignment()} | {one.partition for one in second.assignment()}
        assert parts == {0, 1, 2, 3}

        second.close()
        wait_for(lambda: len(first.assignment()) == 4, first)
    finally:
        first.close()


def wait_for(condition: Callable[[], bool], *consumers: Any, timeout_s: float = 40) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, [one.assignment() for one in consumers]
        for consumer in consumers:
            consumer.poll(0.05)


def test_committed_offsets_are_where_the_next_member_begins(
    servers: str, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("confluent-commit"), fresh("group")
    produce_all({"bootstrap.servers": servers}, topic, [b"%d" % number for number in range(20)])
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    first = Consumer(config)
    first.subscribe([topic])
    seen = [message.value() for message in collect(first, 10)]
    first.commit(offsets=[TopicPartition(topic, 0, 10, metadata="half")], asynchronous=False)
    first.close()

    second = Consumer(config)
    second.subscribe([topic])
    rest = [message.value() for message in collect(second, 10)]
    committed = second.committed([TopicPartition(topic, 0)], timeout=10)
    second.close()

    assert seen + rest == [b"%d" % number for number in range(20)]
    assert committed[0].offset == 10


def collect(consumer: Any, count: int, timeout_s: float = 30) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} came"
        message = consumer.poll(0.2)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def test_the_admin_client_does_its_rounds(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("confluent-admin")
    admin = AdminClient({"bootstrap.servers": servers})

    admin.create_topics([NewTopic(topic, num_partitions=2, config={"retention.ms": "100000"})])[topic].result(
        20
    )
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(20)
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS

    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20)
    assert len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 5

    resource = ConfigResource(ResourceType.TOPIC, topic)
    described = admin.describe_configs([resource])[resource].result(20)
    assert described["retention.ms"].value == "100000"
    entry = ConfigEntry("segment.bytes", "200000", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(20)
    assert admin.describe_configs([resource])[resource].result(20)["segment.bytes"].value == "200000"

    produce_all({"bootstrap.servers": servers}, topic, [b"x"] * 10)
    part = TopicPartition(topic, 0)
    assert admin.list_offsets({part: OffsetSpec.latest()})[part].result(20).offset == 10
    admin.delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0, 4)].result(20)
    assert admin.list_offsets({part: OffsetSpec.earliest()})[part].result(20).offset == 4

    assert len(admin.describe_cluster().result(20).nodes) == 1
    admin.delete_topics([topic])[topic].result(20)
    assert topic not in admin.list_topics(timeout=20).topics


def test_groups_can_be_listed_described_and_deleted(servers: str, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("confluent-groups"), fresh("group")
    produce_all({"bootstrap.servers": servers}, topic, [b"x"] * 3)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    collect(consumer, 3)
    admin = AdminClient({"bootstrap.servers": servers})

    assert group in [one.group_id for one in admin.list_consumer_groups().result(20).valid]
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.state.name == "STABLE"
    assert len(described.members) == 1

    consumer.commit(asynchronous=False)
    consumer.close()
    admin.delete_consumer_groups([group])[group].result(20)
    assert group not in [one.group_id for one in admin.list_consumer_groups().result(20).valid]


def test_offsets_by_time_and_watermarks(servers: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("confluent-time")
    for number in range(10):
        produce_all({"bootstrap.servers": servers}, topic, [b"x"], timestamp=1_000_000 + number * 1000)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "times"})
    try:
        found = consumer.offsets_for_times([TopicPartition(topic, 0, 1_003_500)], timeout=20)
        assert found[0].offset == 4
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20) == (0, 10)
    finally:
        consumer.close()
