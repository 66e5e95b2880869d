"""Log directories of a replicated cluster: one that fails, and replicas that move between them under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from ottla.admin import Admin
from ottla.admin.brokers import LogDir
from ottla.broker.testing import BrokerCluster, BrokerProcess
from ottla.client.cluster import NoSuchTopic
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition

pytestmark = pytest.mark.timeout(300)

BOUND_S: Final = 90
TOPIC: Final = "orders"


class TwoDirectories(BrokerCluster):
    """Brokers with the log directories `a` and `b` each."""

    def _broker(self, node: int) -> BrokerProcess:
        broker = super()._broker(node)
        broker._settings["log.dirs"] = ",".join(str(one) for one in self.directories(node))
        return broker

    def directories(self, node: int) -> tuple[Path, Path]:
        folder = self.data_dir / f"broker-{node}"
        return folder / "a", folder / "b"

    def replica(self, node: int) -> Path:
        """Where a broker has its replica of the topic."""
        (found,) = [one for one in self.directories(node) if (one / f"{TOPIC}-0").exists()]
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TwoDirectories]:
    with TwoDirectories(tmp_path, {"min.insync.replicas": "2"}) as running:
        yield running


@asynccontextmanager
async def written(cluster: TwoDirectories) -> AsyncIterator[tuple[Admin, list[bytes]]]:
    """The topic, led by broker 1 with a replica on each, written with acks=all while the block runs."""
    acknowledged: list[bytes] = []
    async with Admin(cluster.bootstrap_servers) as admin, Producer(cluster.bootstrap_servers) as producer:
        await admin.topics.create(TOPIC, assignments={0: [1, 2, 3]}, configs={"segment.bytes": "20000"})

        async def write() -> None:
            while True:
                value = b"%d" % len(acknowledged) * 100
                await producer.send_and_wait(TOPIC, value)
                acknowledged.append(value)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            yield admin, acknowledged
            writing.cancel()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.05)


async def in_sync(admin: Admin, *nodes: int) -> bool:
    try:
        described = await admin.topics.describe(TOPIC)
    except NoSuchTopic:  # a broker that has just started
        return False
    return set(described.partitions[0].isr) == set(nodes)


async def all_values(cluster: TwoDirectories, count: int) -> list[bytes]:
    consumer = Consumer(TOPIC, bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    async with asyncio.timeout(BOUND_S), consumer:
        return [(await consumer.getone()).value or b"" for _ in range(count)]


async def grown(acknowledged: list[bytes], by: int) -> None:
    wanted = len(acknowledged) + by

    async def is_there() -> bool:
        return len(acknowledged) >= wanted

    await until(is_there)


async def directory_of(admin: Admin, node: int, path: Path) -> LogDir:
    (found,) = [one for one in await admin.brokers.log_dirs(node) if Path(one.path) == path]
    return found


async def test_another_replica_leads_when_a_log_directory_fails(
    cluster: TwoDirectories, record_property: Callable[[str, object], None]
) -> None:
    async with written(cluster) as (admin, acknowledged):
        await until(lambda: in_sync(admin, 1, 2, 3))
        await grown(acknowledged, 50)
        failing = cluster.replica(1)

        failing.rename(failing.with_name("gone"))  # the next segment cannot be created
        begun_s = time.monotonic()

        await until(lambda: in_sync(admin, 2, 3))
        took_s = time.monotonic() - begun_s
        record_property("figure", f"others lead {took_s:.1f} s after the directory is gone")
        await grown(acknowledged, 50)
        assert {one.id for one in (await admin.brokers.describe()).brokers} == {1, 2, 3}
        described = await ask(cluster, 1, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
        errors = {Path(one.log_dir): one.error_code for one in described.results}
        assert [one for one, code in errors.items() if code == ErrorCode.KAFKA_STORAGE_ERROR] == [failing]
        failing.with_name("gone").rename(failing)
        await asyncio.to_thread(cluster.brokers[1].restart)
        await until(lambda: in_sync(admin, 1, 2, 3))
    assert await all_values(cluster, len(acknowledged)) == acknowledged


R = TypeVar("R", bound=Message)


async def ask(cluster: TwoDirectories, node: int, request: Message, response_type: type[R]) -> R:
    connection = Connection(Address("127.0.0.1", cluster.brokers[node].port), ClientConfig())
    await connection.connect()
    try:
        return await connection.send(request, response_type)
    finally:
        await connection.close()


async def move(cluster: TwoDirectories, node: int, to: Path) -> int:
    topic = AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=str(to), topics=[topic])])
    response = await ask(cluster, node, request, AlterReplicaLogDirsResponse)
    return response.results[0].partitions[0].error_code


async def test_replicas_move_between_directories_under_load_and_over_a_kill(
    cluster: TwoDirectories, record_property: Callable[[str, object], None]
) -> None:
    async with written(cluster) as (admin, acknowledged):
        await until(lambda: in_sync(admin, 1, 2, 3))
        await grown(acknowledged, 100)
        took_s = []
        for node in (1, 2):  # the leader, and a follower
            source = cluster.replica(node)
            (target,) = {*cluster.directories(node)} - {source}
            begun_s = time.monotonic()
            assert await move(cluster, node, target) == ErrorCode.NONE
            if node == 2:
                cluster.brokers[2].kill()
                cluster.brokers[2].start()

            async def has_moved(node: int = node, source: Path = source, target: Path = target) -> bool:
                here = await directory_of(admin, node, target)
                return not (source / f"{TOPIC}-0").exists() and any(
                    one.partition == TopicPartition(TOPIC, 0) and not one.is_future for one in here.replicas
                )

            await until(has_moved)
            took_s.append(time.monotonic() - begun_s)
            await grown(acknowledged, 50)
        await until(lambda: in_sync(admin, 1, 2, 3))
        figure = "the leader's moved in {:.1f} s, a follower's over a kill in {:.1f} s".format(*took_s)
        record_property("figure", figure)
        assert await move(cluster, 1, cluster.data_dir) == ErrorCode.LOG_DIR_NOT_FOUND
        cluster.brokers[1].kill()  # what moved is read from broker 2 or 3
        await grown(acknowledged, 20)
    assert await all_values(cluster, len(acknowledged)) == acknowledged
