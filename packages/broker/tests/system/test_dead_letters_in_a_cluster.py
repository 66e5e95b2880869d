"""Dead letters whose topic another broker leads, also after that one has died."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ottla.admin import GROUP, Admin
from ottla.broker.testing import BrokerCluster
from ottla.consumer import Consumer, ConsumerConfig, ShareConsumer, ShareConsumerConfig
from ottla.producer import Producer

pytestmark = pytest.mark.timeout(300)

BOUND_S = 120.0
COUNT = 10
SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "share.coordinator.state.topic.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "auto.create.topics.enable": "false",
}


async def prepare(servers: str) -> None:
    """Lead the records by broker 1 and the letters by broker 2, which only broker 3 can replace."""
    async with Admin(servers) as admin:
        await admin.topics.create("jobs", assignments={0: [1]})
        await admin.topics.create(
            "dlq.jobs", assignments={0: [2, 3]}, configs={"errors.deadletterqueue.group.enable": "true"}
        )
        settings = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": "dlq.jobs",
            "errors.deadletterqueue.copy.record.enable": "true",
        }
        await admin.configs.alter(GROUP, "workers", settings)


async def produce(servers: str, values: range) -> None:
    async with Producer(servers) as producer:
        for value in values:
            await producer.send_and_wait("jobs", b"%d" % value)


async def reject(servers: str, count: int) -> None:
    config = ShareConsumerConfig.of(group_id="workers", value_type=str)
    async with (
        ShareConsumer("jobs", bootstrap_servers=servers, config=config) as consumer,
        asyncio.timeout(BOUND_S),
    ):
        for _ in range(count):
            await (await consumer.getone()).reject()


async def letters(servers: str, count: int) -> Counter[bytes]:
    """Read dead letters until there are so many different ones."""
    found: Counter[bytes] = Counter()
    config = ConsumerConfig(auto_offset_reset="earliest")
    async with (
        Consumer("dlq.jobs", bootstrap_servers=servers, config=config) as consumer,
        asyncio.timeout(BOUND_S),
    ):
        while len(found) < count:
            record: Any = await consumer.getone()
            found[record.value] += 1
    return found


async def test_letters_go_to_the_leader_of_their_topic_and_to_the_one_after_it(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, SETTINGS) as cluster:
        servers = cluster.bootstrap_servers
        await prepare(servers)
        await produce(servers, range(COUNT))
        await reject(servers, COUNT)
        before = await letters(servers, COUNT)

        cluster.brokers[2].kill()
        await produce(servers, range(COUNT, 2 * COUNT))
        await reject(servers, COUNT)
        after = await letters(servers, 2 * COUNT)

    assert before == Counter({b"%d" % value: 1 for value in range(COUNT)})
    assert after.keys() == {b"%d" % value for value in range(2 * COUNT)}
