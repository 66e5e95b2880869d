"""The znodes of a cluster beside those of Apache Kafka 3.9 at level 2.8, and both in one cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from ottla.zookeeper import paths
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import NULL, NoNode
from ottla.zookeeper.znodes import ConfigEntity, ControllerNode, OttlaTopicSettings
from peers.apache_kafka import ApacheKafka, ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

BOUND_S = 60.0
LEVEL = {"inter.broker.protocol.version": "2.8"}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as zookeeper:
        yield zookeeper


async def znodes_of(zookeeper: ZooKeeper, chroot: str) -> dict[str, bytes | None]:
    """The data of the znodes that a cluster of one broker has at its start; None for null, times masked."""
    found: dict[str, bytes | None] = {}
    async with KazooSession(f"{zookeeper.connect_string}/{chroot}") as session:
        for path in (*paths.PERSISTENT_ROOTS, paths.CLUSTER, paths.CONTROLLER, paths.FEATURE):
            data, _ = await session.get(path)
            found[path] = None if data is NULL else re.sub(rb'"\d{13}"', b'"TIME"', data)
    return found


async def test_a_new_cluster_has_the_znodes_of_apache_kafka(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    kafka = {"zookeeper.connect": f"{zookeeper.connect_string}/kafka", **LEVEL}
    with ApacheKafka(tmp_path / "kafka", kafka, zookeeper=zookeeper, heap="384m"):
        theirs = await znodes_of(zookeeper, "kafka")
    ours = {"broker.id": "1", "zookeeper.connect": f"{zookeeper.connect_string}/ottla"}
    with BrokerProcess(tmp_path / "ottla", ours):
        mine = await znodes_of(zookeeper, "ottla")

    # Apache Kafka claims a block of producer ids at its start, Ottla with the first producer.
    assert theirs.pop(paths.LATEST_PRODUCER_ID_BLOCK)
    assert mine.pop(paths.LATEST_PRODUCER_ID_BLOCK) is None
    assert mine == theirs


@pytest.mark.parametrize("block", [NULL, b""], ids=["null", "as earlier versions left it"])
async def test_apache_kafka_joins_a_cluster_and_takes_it_over(
    zookeeper: ZooKeeper, tmp_path: Path, block: bytes
) -> None:
    connect = f"{zookeeper.connect_string}/mixed-{'null' if block is NULL else 'empty'}"
    async with KazooSession(connect) as session:
        if block is not NULL:  # a cluster that an earlier version made
            for path in (paths.CONSUMERS, paths.LATEST_PRODUCER_ID_BLOCK):
                await session.create(path, block)
        ottla = BrokerProcess(tmp_path / "ottla", {"broker.id": "1", "zookeeper.connect": connect})
        kafka = {"broker.id": "2", "zookeeper.connect": connect, **LEVEL}
        with (
            ottla,
            ApacheKafka(tmp_path / "kafka", kafka, zookeeper=zookeeper, heap="384m"),
        ):
            assert await session.children(paths.BROKER_IDS) == ["1", "2"]
            assert await controller_of(session) == 1
            ottla.stop()
            async with asyncio.timeout(BOUND_S):
                await until_controlled_by(session, 2)


async def alter_through(servers: str, topic: str, key: str, value: str) -> int:
    """Set a topic's key through the broker of that address; return the error code."""
    change = IncrementalAlterableConfig(name=key, config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    host, _, port = servers.partition(":")
    async with asyncio.timeout(BOUND_S), Connection(Address(host, int(port))) as connection:
        answer = await connection.send(request, IncrementalAlterConfigsResponse)
    return answer.responses[0].error_code


async def test_a_topic_with_a_key_of_ours_is_altered_through_an_apache_controller(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    connect, own = f"{zookeeper.connect_string}/own-keys", "flush.before.acknowledge"
    kafka = {"broker.id": "2", "zookeeper.connect": connect, **LEVEL}
    ours = {"broker.id": "1", "zookeeper.connect": connect}
    with ApacheKafka(tmp_path / "kafka", kafka, zookeeper=zookeeper, heap="384m") as apache:
        async with KazooSession(connect) as session, Admin(apache.bootstrap_servers) as admin:
            assert await controller_of(session) == 2
            await admin.topics.create("orders", partitions=1)
            # As earlier versions stored it: beside Kafka's keys.
            earlier = ConfigEntity("topics/orders", {own: "true"})
            await session.set(earlier.path, earlier.encode())
            refused = await alter_through(apache.bootstrap_servers, "orders", "retention.ms", "5000")
            assert refused == ErrorCode.INVALID_CONFIG
            with BrokerProcess(tmp_path / "ottla", ours) as ottla:
                assert await alter_through(ottla.bootstrap_servers, "orders", own, "true") == 0

                assert await alter_through(apache.bootstrap_servers, "orders", "retention.ms", "6000") == 0

                data, _ = await session.get(earlier.path)
                config = ConfigEntity.decode("topics/orders", data).config
                assert config == {"retention.ms": "6000"}
                data, _ = await session.get(paths.ottla_topic_settings("orders"))
                assert OttlaTopicSettings.decode("orders", data).config == {own: "true"}


async def controller_of(session: KazooSession) -> int | None:
    try:
        data, _ = await session.get(paths.CONTROLLER)
    except NoNode:
        return None
    return ControllerNode.decode(data).broker_id


async def until_controlled_by(session: KazooSession, broker_id: int) -> None:
    changed = asyncio.Event()
    while True:
        changed.clear()
        await session.exists(paths.CONTROLLER, lambda _: changed.set())
        if await controller_of(session) == broker_id:
            return
        await changed.wait()
