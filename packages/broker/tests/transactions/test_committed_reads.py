"""Reads of transactions at both isolation levels, by a client of a whole broker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerThread

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(TIMEOUT_S)
    return name


def producer_of(broker: BrokerThread, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    return producer


def read(broker: BrokerThread, topic: str, count: int, level: str) -> list[bytes]:
    """Read `count` records, or until a second has brought nothing more behind the last of them."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": level,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    values: list[bytes] = []
    ended: set[Any] = set()
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(values) < count or len(ended) < 2:
            assert time.monotonic() < deadline, values
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                ended.add(message.partition())
            else:
                values.append(message.value())
        return values
    finally:
        consumer.close()


def transaction(producer: Producer, topic: str, *values: bytes, commit: bool) -> None:
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    producer.flush(TIMEOUT_S)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


def test_readers_of_committed_records_see_what_was_committed_only(broker: BrokerThread, topic: str) -> None:
    producer = producer_of(broker, topic)

    transaction(producer, topic, b"1", b"2", commit=True)
    transaction(producer, topic, b"3", b"4", commit=False)
    transaction(producer, topic, b"5", b"6", commit=True)

    assert sorted(read(broker, topic, 4, "read_committed")) == [b"1", b"2", b"5", b"6"]
    assert sorted(read(broker, topic, 6, "read_uncommitted")) == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_an_open_transaction_is_invisible_until_it_is_committed(broker: BrokerThread, topic: str) -> None:
    producer = producer_of(broker, topic)
    transaction(producer, topic, b"1", b"2", commit=True)

    producer.begin_transaction()
    producer.produce(topic, b"3", partition=0)
    producer.flush(TIMEOUT_S)
    before = read(broker, topic, 2, "read_committed")
    producer.commit_transaction(TIMEOUT_S)

    assert sorted(before) == [b"1", b"2"]
    assert sorted(read(broker, topic, 3, "read_committed")) == [b"1", b"2", b"3"]


def test_offsets_of_a_group_move_with_the_transaction(broker: BrokerThread, topic: str) -> None:
    producer = producer_of(broker, topic)
    transaction(producer, topic, b"1", b"2", b"3", b"4", commit=True)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    try:
        for commits, offset in ((True, 1), (False, 1), (True, 3)):
            producer.begin_transaction()
            producer.produce(topic, b"out", partition=1)
            producer.send_offsets_to_transaction(
                [TopicPartition(topic, 0, offset if commits else 9)],
                consumer.consumer_group_metadata(),
                TIMEOUT_S,
            )
            if commits:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
            assert consumer.committed([partition], TIMEOUT_S)[0].offset == offset
    finally:
        consumer.close()
