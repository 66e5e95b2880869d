"""Groups of unmodified clients against a whole broker."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.testing import BrokerThread

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic
    from kafka import KafkaConsumer

TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """A topic of four partitions with ten records in each."""
    name = re.sub(r"\W", "-", request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    for number in range(40):
        producer.produce(name, str(number).encode(), partition=number % 4)
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.fixture
def members() -> Iterator[ExitStack]:
    """Closes members whatever happens: kafka-python's go on in threads, and would disturb all later tests."""
    with ExitStack() as stack:
        yield stack


def until(condition: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
    """Do `meanwhile` until `condition` holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        meanwhile()


class ConfluentMember:
    """A member of a group on librdkafka."""

    def __init__(self, broker: BrokerThread, topic: str, group: str, **settings: Any) -> None:
        self.rebalances = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6_000,
                "partition.assignment.strategy": "range",
            }
            | {key.replace("_", "."): value for key, value in settings.items()}
        )
        self.values: list[bytes] = []
        self.consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, _consumer: Consumer, _partitions: object) -> None:
        self.rebalances += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None and message.error() is None:
            self.values.append(message.value())

    def partitions(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class PythonMember:
    """A member of a group on kafka-python."""

    def __init__(self, broker: BrokerThread, topic: str, group: str) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
            session_timeout_ms=6_000,
            metadata_max_age_ms=1_000,  # who joined before it knew the topic looks again soon
        )
        self.values: list[bytes] = []

    def poll(self) -> None:
        # Not shorter: where a poll ends while a second SyncGroup is under way, the next one takes the group
        # for joined (kafka-python 3.0.12), and nobody ever looks at the answer with the partitions.
        for records in self.consumer.poll(1_000).values():
            self.values += [record.value for record in records]

    def partitions(self) -> set[int]:
        return {one.partition for one in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


@pytest.mark.parametrize(
    ("first_kind", "second_kind"),
    [(ConfluentMember, ConfluentMember), (PythonMember, PythonMember), (ConfluentMember, PythonMember)],
)
def test_members_share_the_partitions_and_take_over_from_each_other(
    broker: BrokerThread, topic: str, first_kind: type, second_kind: type, members: ExitStack
) -> None:
    first = first_kind(broker, topic, topic)
    members.callback(first.close)
    until(lambda: first.partitions() == {0, 1, 2, 3}, first.poll)
    second = second_kind(broker, topic, topic)
    members.callback(second.close)

    def both() -> None:
        first.poll()
        second.poll()

    until(lambda: sorted([*first.partitions(), *second.partitions()]) == [0, 1, 2, 3], both)
    until(lambda: len(first.partitions()) == len(second.partitions()) == 2, both)
    first.close()
    until(lambda: second.partitions() == {0, 1, 2, 3}, second.poll)
    until(lambda: len(set(first.values + second.values)) == 40, second.poll)


async def test_asyncio_members_share_the_partitions_and_commit(broker: BrokerThread, topic: str) -> None:
    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=100,
        )

    async with asyncio.timeout(TIMEOUT_S):
        async with member() as first:
            values = [(await first.getone()).value for _ in range(40)]
            await first.commit()
            async with member() as second:
                while not (len(first.assignment()) == len(second.assignment()) == 2):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert len(set(values)) == 40
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            await producer.send_and_wait(topic, b"new", partition=3)
        async with member() as third:
            assert (await third.getone()).value == b"new"


def test_a_static_member_restarts_without_a_rebalance(broker: BrokerThread, topic: str) -> None:
    stays = ConfluentMember(broker, topic, topic, group_instance_id="stays")
    goes = ConfluentMember(broker, topic, topic, group_instance_id="goes")

    def both() -> None:
        stays.poll()
        goes.poll()

    until(lambda: len(stays.partitions()) == len(goes.partitions()) == 2, both)
    rebalances, mine = stays.rebalances, goes.partitions()
    goes.close()

    again = ConfluentMember(broker, topic, topic, group_instance_id="goes")

    def both_again() -> None:
        stays.poll()
        again.poll()

    until(lambda: bool(again.partitions()), both_again)

    assert again.partitions() == mine
    assert stays.rebalances == rebalances
    again.close()
    stays.close()


def test_a_group_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for number in range(10):
            producer.produce("topic", str(number).encode(), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        member = ConfluentMember(broker, "topic", "group")
        until(lambda: len(member.values) == 10, member.poll)
        member.consumer.commit(asynchronous=False)
        before = member.rebalances

        broker.restart()

        producer.produce("topic", b"after", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        until(lambda: member.values[-1] == b"after", member.poll)
        assert member.values == [*(str(number).encode() for number in range(10)), b"after"]
        assert member.rebalances == before
        member.consumer.commit(asynchronous=False)
        member.close()
        again = ConfluentMember(broker, "topic", "group")
        until(lambda: bool(again.partitions()), again.poll)
        producer.produce("topic", b"last", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        until(lambda: bool(again.values), again.poll)
        assert again.values == [b"last"]
        again.close()
