"""Unmodified clients heartbeat as often as the broker asks for: often in a rebalance, seldom after it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from interop.test_moving_groups import CLIENTS, HOSTS
from ottla.broker.testing import BrokerProcess
from peers.moving_group import MemberHost, MovingGroup
from peers.processes import free_port
from peers.request_counts import request_counts

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

PARTITIONS: Final = 4
IN_MOTION_S: Final = 20.0
SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "group.consumer.heartbeat.interval.ms": "10000",
}
OFTEN: Final = 12
"""Heartbeats that are more than the configured interval asks for while a group is in motion, of two members.

Each member sends two or three for its partitions, whatever it is told, and two at the interval of 10 s.
"""
_numbers = count(1)


class CountedBroker:
    """A broker that counts the heartbeats of the consumer protocol."""

    def __init__(self, folder: Path) -> None:
        self._metrics_port = free_port()
        self.process = BrokerProcess(folder, SETTINGS | {"metrics.port": str(self._metrics_port)})

    @property
    def servers(self) -> str:
        return self.process.bootstrap_servers

    def heartbeats(self) -> int:
        counts = request_counts(f"127.0.0.1:{self._metrics_port}")
        return sum(found for (name, _), found in counts.items() if name == "ConsumerGroupHeartbeat")

    def heartbeats_within(self, seconds: float) -> int:
        before = self.heartbeats()
        time.sleep(seconds)  # a rate is over a time
        return self.heartbeats() - before


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedBroker]:
    broker = CountedBroker(tmp_path_factory.mktemp("broker"))
    with broker.process:
        yield broker


def set_interval(broker: CountedBroker, group: str, milliseconds: int) -> None:
    entry = ConfigEntry(
        "consumer.heartbeat.interval.ms", str(milliseconds), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.incremental_alter_configs([resource])[resource].result(60)


@pytest.mark.parametrize("client", CLIENTS)
def test_members_heartbeat_often_in_a_rebalance_and_as_configured_after_it(
    broker: CountedBroker, client: str
) -> None:
    name = f"orders-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(60)
    with MemberHost(HOSTS[client](), broker.servers, name, name) as host:
        group = MovingGroup({"consumer": [host]}, PARTITIONS)
        before = broker.heartbeats()
        group.start("consumer")
        group.start("consumer")
        group.settle("by two members")
        in_motion = broker.heartbeats() - before + broker.heartbeats_within(IN_MOTION_S)
        time.sleep(10)  # the last early interval and a configured one
        at_rest = broker.heartbeats_within(20)
        set_interval(broker, name, 5_000)
        time.sleep(10)  # each member hears of it with its next heartbeat
        of_the_group = broker.heartbeats_within(20)
        for _ in range(2):
            group.stop_oldest()

    assert in_motion > OFTEN
    assert at_rest <= 2 * 3, "two members, each 10 s"
    assert 2 * 3 < of_the_group <= 2 * 5, "two members, each 5 s"
