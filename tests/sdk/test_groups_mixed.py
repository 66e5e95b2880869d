"""Groups of several kinds of clients: whoever leads, each partition is owned once and each record is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from ottla.admin import Admin
from peers.groups import MixedGroup, mixed_group

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 7

# Ours in the middle or first, so that it leads in some groups and follows in others.
SHARED = {
    "range": ["aiokafka", "ottla", "java", "confluent", "ottla"],
    "roundrobin": ["ottla", "confluent", "aiokafka", "java"],
    "sticky": ["java", "ottla", "aiokafka", "ottla"],
    "cooperative-sticky": ["ottla", "java", "confluent", "ottla"],
}


class Servers(Protocol):
    """A cluster under test."""

    bootstrap_servers: str


class Writer:
    """Writes a few records to each partition at a time, and knows which there are."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self.written: set[tuple[int, int]] = set()
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def write(self) -> None:
        for partition in range(PARTITIONS):
            for _ in range(5):
                self._producer.produce(
                    self._topic, b"value", partition=partition, on_delivery=self._delivered
                )
        self._producer.flush(30)

    def _delivered(self, error: object, record: Any) -> None:
        assert error is None, error
        self.written.add((record.partition(), record.offset()))


@pytest.mark.parametrize("assignor", SHARED)
async def test_members_of_all_kinds_share_the_partitions(
    cluster: Servers, fresh: Callable[[str], str], assignor: str
) -> None:
    servers, topic, group = cluster.bootstrap_servers, fresh("mixed"), fresh("mixed")
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=PARTITIONS)

    # Members are processes: nothing here has to keep the loop free.
    with mixed_group(servers, group, topic, PARTITIONS, assignor) as mixed:
        _live_and_die(mixed, Writer(servers, topic), SHARED[assignor])


def _live_and_die(mixed: MixedGroup, writer: Writer, kinds: list[str]) -> None:
    for kind in kinds:
        mixed.start(kind)
        writer.write()
        mixed.settle()
    mixed.stop(mixed.members[0])
    writer.write()
    mixed.settle()
    mixed.kill(mixed.members[0])
    writer.write()
    mixed.settle()
    mixed.start(kinds[0])
    writer.write()
    mixed.settle()
    mixed.wait_for(writer.written)
    while mixed.members:
        mixed.stop(mixed.members[0])
