"""confluent-kafka with `group.protocol=consumer` (KIP-848) on our broker, and beside classic members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerProcess

TIMEOUT_S = 60.0
PARTITIONS = 6
RECORDS = 600
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
        admin.create_topics([NewTopic("topic", PARTITIONS, 1)])["topic"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        for number in range(RECORDS):
            producer.produce("topic", str(number).encode(), partition=number % PARTITIONS)
        assert producer.flush(TIMEOUT_S) == 0
        yield running.bootstrap_servers


def member(servers: str, group: str, protocol: str, subscription: str = "topic") -> Consumer:
    config = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "group.protocol": protocol,
    }
    if protocol == "classic":
        # Assignments of its `cooperative-sticky` have user data, with which Kafka refuses to upgrade a group.
        config["partition.assignment.strategy"] = "range"
    consumer = Consumer(config)
    consumer.subscribe([subscription])
    return consumer


class Readers:
    """Members that are polled in turns; what each has read is kept."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        self.consumers = list(consumers)
        self.read: list[tuple[int, int]] = []

    def poll_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, [len(owned) for owned in self.owned()]
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if message is None:
                    continue
                assert message.error() is None, message.error()
                self.read.append((message.partition(), message.offset()))

    def owned(self) -> list[set[int]]:
        return [{partition.partition for partition in consumer.assignment()} for consumer in self.consumers]

    def share(self, *sizes: int) -> bool:
        owned = self.owned()
        together = set().union(*owned)
        return sorted(map(len, owned)) == sorted(sizes) and len(together) == PARTITIONS

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.mark.parametrize("subscription", ["topic", "^top[a-z]*$"])
def test_members_share_partitions_and_read_every_record_once(servers: str, subscription: str) -> None:
    group = f"g{subscription}"
    readers = Readers([member(servers, group, "consumer", subscription) for _ in range(2)])

    readers.poll_until(lambda: readers.share(3, 3) and len(readers.read) >= RECORDS)
    for consumer in readers.consumers:
        consumer.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": servers})
    described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)

    assert len(readers.read) == len(set(readers.read)) == RECORDS
    assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
    assert [len(found.assignment.topic_partitions) for found in described.members] == [3, 3]
    readers.consumers.pop().close()
    readers.poll_until(lambda: readers.share(PARTITIONS))
    readers.close()


def test_a_group_moves_to_the_consumer_protocol_and_back_one_member_after_the_other(servers: str) -> None:
    readers = Readers([member(servers, "moving", "classic") for _ in range(2)])
    readers.poll_until(lambda: readers.share(3, 3))
    admin = AdminClient({"bootstrap.servers": servers})

    def kind() -> str:
        listed = admin.list_consumer_groups().result(TIMEOUT_S).valid
        name: str = next(found.type.name for found in listed if found.group_id == "moving")
        return name

    assert kind() == "CLASSIC"
    for protocol, expected in (("consumer", "CONSUMER"), ("classic", "CLASSIC")):
        for _ in range(2):
            readers.consumers.append(member(servers, "moving", protocol))
            readers.poll_until(lambda: readers.share(2, 2, 2))
            readers.consumers.pop(0).close()
            readers.poll_until(lambda: readers.share(3, 3))
        assert kind() == expected
    readers.poll_until(lambda: len(set(readers.read)) == RECORDS)
    readers.close()
