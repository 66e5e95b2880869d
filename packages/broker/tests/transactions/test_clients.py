"""Transactions of unmodified clients, and of ours, against a whole broker."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.testing import BrokerProcess, BrokerThread

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import ProducerFenced as AiokafkaFenced
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as KafkaPartition
    from kafka.errors import ProducerFencedError
    from kafka.structs import OffsetAndMetadata

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with BrokerThread(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions."""
    name = re.sub(r"\W", "-", request.node.name)
    create(broker, name)
    return name


def create(broker: BrokerThread | BrokerProcess, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(TIMEOUT_S)


def confluent(broker: BrokerThread | BrokerProcess, transactional_id: str, **settings: Any) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id} | named
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def reader(broker: BrokerThread | BrokerProcess, group: str = "reader") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )


def committed(broker: BrokerThread | BrokerProcess, topic: str) -> list[bytes]:
    """Return the sorted values that a new read_committed consumer gets up to the last stable offset."""
    consumer = reader(broker)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    values, at_end, deadline = list[bytes](), set[int](), time.monotonic() + TIMEOUT_S
    while len(at_end) < 2:
        assert time.monotonic() < deadline, "the reader does not reach the end"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            at_end.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


def until_committed(broker: BrokerThread | BrokerProcess, topic: str, expected: list[bytes]) -> None:
    """The markers follow the answer: wait for them."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := committed(broker, topic)) != expected:
        assert time.monotonic() < deadline, f"found {found}"


# ---- commit and abort


def test_confluents_producer_commits_and_aborts(broker: BrokerThread, topic: str) -> None:
    producer = confluent(broker, topic)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, str(number).encode(), partition=number % 2)
        producer.flush(TIMEOUT_S)
        if number % 3:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)

    until_committed(broker, topic, [b"1", b"2", b"4", b"5"])


async def test_aiokafkas_producer_commits_and_aborts(broker: BrokerThread, topic: str) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id=topic
    ) as producer:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, str(number).encode(), partition=number % 2)
            await (producer.commit_transaction() if number % 3 else producer.abort_transaction())

    await asyncio.to_thread(until_committed, broker, topic, [b"1", b"2", b"4", b"5"])


def test_kafka_pythons_producer_commits_and_aborts(broker: BrokerThread, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    try:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send(topic, str(number).encode(), partition=number % 2).get(TIMEOUT_S)
            if number % 3:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    finally:
        producer.close(TIMEOUT_S)

    until_committed(broker, topic, [b"1", b"2", b"4", b"5"])


# ---- fencing


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(
    broker: BrokerThread, topic: str
) -> None:
    first = confluent(broker, topic)
    first.begin_transaction()
    first.produce(topic, b"first", partition=0)
    first.flush(TIMEOUT_S)

    second = confluent(broker, topic)
    second.begin_transaction()
    second.produce(topic, b"second", partition=0)
    second.commit_transaction(TIMEOUT_S)

    with pytest.raises(KafkaException, match="FENCED"):
        first.commit_transaction(TIMEOUT_S)
    until_committed(broker, topic, [b"second"])


async def test_aiokafkas_producer_hears_that_it_is_fenced(broker: BrokerThread, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"first", partition=0)
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic):
            with pytest.raises(AiokafkaFenced):
                await first.commit_transaction()

    await asyncio.to_thread(until_committed, broker, topic, [])


def test_kafka_pythons_producer_hears_that_it_is_fenced(broker: BrokerThread, topic: str) -> None:
    first = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    try:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"first", partition=0).get(TIMEOUT_S)
        confluent(broker, topic)

        with pytest.raises(ProducerFencedError):
            first.commit_transaction()
    finally:
        first.close(TIMEOUT_S)


# ---- time


def test_a_transaction_that_its_producer_leaves_open_is_aborted(broker: BrokerThread, topic: str) -> None:
    left = confluent(broker, topic, transaction_timeout_ms=1_000)
    left.begin_transaction()
    left.produce(topic, b"left", partition=0)
    left.flush(TIMEOUT_S)
    other = confluent(broker, f"{topic}-other")
    other.begin_transaction()
    other.produce(topic, b"other", partition=0)
    other.commit_transaction(TIMEOUT_S)

    until_committed(broker, topic, [b"other"])


# ---- offsets with the transaction


@pytest.mark.parametrize("commit", [True, False])
def test_consumed_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: BrokerThread, topic: str, commit: bool
) -> None:
    producer = confluent(broker, topic)
    consumer = reader(broker, f"{topic}-group")
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT_S
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.2)

    producer.begin_transaction()
    producer.produce(topic, b"derived", partition=1)
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, 5)], consumer.consumer_group_metadata(), TIMEOUT_S
    )
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)

    (found,) = consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)
    assert found.offset == (5 if commit else -1001)
    consumer.close()


async def test_aiokafkas_offsets_are_committed_with_the_transaction(broker: BrokerThread, topic: str) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=f"{topic}-group",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    async with consumer, producer:
        one = next(iter(consumer.assignment()))

        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({one: 7}, f"{topic}-group")
        await producer.commit_transaction()

        async with asyncio.timeout(TIMEOUT_S):
            assert await consumer.committed(one) == 7


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_pythons_offsets_are_committed_with_the_transaction_or_not_at_all(
    broker: BrokerThread, topic: str, commit: bool
) -> None:
    group, one = f"{topic}-group", KafkaPartition(topic, 0)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({one: OffsetAndMetadata(5, "note", -1)}, group)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    finally:
        producer.close(TIMEOUT_S)

    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id=group)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while (found := consumer.committed(one, metadata=True)) is None and commit:
            assert time.monotonic() < deadline, "the marker follows the answer"
    finally:
        consumer.close()
    assert (found and (found.offset, found.metadata)) == ((5, "note") if commit else None)


# ---- restarts


def test_a_killed_broker_finishes_what_was_decided_and_aborts_what_was_open(
    ottla_broker_process: BrokerProcess,
) -> None:
    broker, topic = ottla_broker_process, "topic"
    create(broker, topic)
    decided, left = confluent(broker, "decided"), confluent(broker, "left", transaction_timeout_ms=20_000)
    for producer, value in ((decided, b"decided"), (left, b"left")):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.produce(topic, value, partition=1)
        producer.flush(TIMEOUT_S)
    decided.commit_transaction(TIMEOUT_S)

    broker.kill()
    broker.restart()

    left_again = confluent(broker, "left")
    left_again.begin_transaction()
    left_again.produce(topic, b"again", partition=0)
    left_again.commit_transaction(TIMEOUT_S)
    until_committed(broker, topic, [b"again", b"decided", b"decided"])
