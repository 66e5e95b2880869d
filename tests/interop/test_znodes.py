"""The znodes of a cluster beside those of Apache Kafka 3.9 at level 2.8, and both in one cluster."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.zookeeper import paths
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import NULL, NoNode
from ottla.zookeeper.znodes import ControllerNode
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
