"""Brokers without a quorum of ZooKeeper, and a broker whose event loop is blocked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest
from cluster_network import Host
from cluster_nodes import Ensemble

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.zookeeper import paths
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.watchdog import EXIT_STATUS
from ottla.zookeeper.znodes import PartitionState

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

BOUND_S: Final = 90
SESSION_MS: Final = 2_000
TOPIC: Final = "orders"
NODES: Final = (1, 2, 3)
LOSSES: Final = int(os.environ.get("QUORUM_LOSSES", "3"))


class Cluster:
    """Three brokers in processes of their own, and a ZooKeeper ensemble."""

    def __init__(self, zookeeper: Ensemble, folder: Path, session_ms: int) -> None:
        self.zookeeper = zookeeper
        self.session_ms = session_ms
        self.brokers = {node: BrokerProcess(folder / f"b{node}", self._settings(node)) for node in NODES}

    def _settings(self, node: int) -> dict[str, str]:
        return {
            "broker.id": str(node),
            "zookeeper.connect": self.zookeeper.connect_string,
            "zookeeper.session.timeout.ms": str(self.session_ms),
            "zookeeper.connection.timeout.ms": "30000",
            "offsets.topic.num.partitions": "1",
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(each.bootstrap_servers for each in self.brokers.values())

    async def lives(self) -> dict[int, int]:
        """The epoch of each broker's registration, which a lost session would change."""
        found = {}
        async with KazooSession(self.zookeeper.connect_string, connection_timeout_ms=30_000) as session:
            for node in NODES:
                stat = await session.exists(paths.broker(node))
                found[node] = -1 if stat is None else stat.czxid
        return found

    async def leaderships(self) -> list[PartitionState]:
        async with KazooSession(self.zookeeper.connect_string, connection_timeout_ms=30_000) as session:
            states = []
            for number in range(len(NODES)):
                data, _ = await session.get(paths.partition_state(TOPIC, number))
                states.append(PartitionState.decode(TOPIC, number, data))
        return states


@asynccontextmanager
async def ensemble(folder: Path, tick_ms: int = 500) -> AsyncIterator[Ensemble]:
    hosts = [Host(f"zookeeper{number}", "127.0.0.1") for number in NODES]
    servers = Ensemble(hosts, folder, tick_ms=tick_ms)
    try:
        await asyncio.to_thread(servers.start)
        yield servers
    finally:
        servers.kill()


@asynccontextmanager
async def running(folder: Path, session_ms: int = SESSION_MS) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        zookeeper = await stack.enter_async_context(ensemble(folder / "zk", session_ms // 3))
        cluster = Cluster(zookeeper, folder, session_ms)
        for broker in cluster.brokers.values():
            await asyncio.to_thread(broker.start)
            stack.callback(broker.kill)
        async with Admin(cluster.bootstrap_servers) as admin:
            await admin.topics.create(TOPIC, assignments={at: [node] for at, node in enumerate(NODES)})
        yield cluster


async def send(cluster: Cluster, text: str) -> None:
    """Write one record to each partition, acknowledged by all replicas."""
    async with Producer(cluster.bootstrap_servers) as producer:
        for at in range(len(NODES)):
            await producer.send_and_wait(TOPIC, text.encode(), partition=at)


async def take(consumer: Consumer, text: str, count: int) -> None:
    for _ in range(count):
        assert (await consumer.getone()).value == text.encode()
    await consumer.commit()


T = TypeVar("T")


async def until(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> None:
    """Wait for a state of ZooKeeper; the bound is the caller's."""
    while not holds(await read()):  # noqa: ASYNC110 - several processes change it
        await asyncio.sleep(0.1)


def member(cluster: Cluster) -> Consumer:
    return Consumer(
        TOPIC,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="readers",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
    )


async def owns(consumer: Consumer, fewer_than: int) -> None:
    """Wait, polling, until a rebalance has left this member fewer partitions, at least one."""
    while not 0 < len(consumer.assignment()) < fewer_than:
        await consumer.getmany(timeout_ms=100)


async def everything_but_elections(cluster: Cluster, text: str) -> None:
    """Produce, fetch, commit and rebalance; ends within the bound, or raises."""
    async with asyncio.timeout(BOUND_S), member(cluster) as first:
        await send(cluster, text)
        await take(first, text, len(NODES))
        async with member(cluster) as second, asyncio.TaskGroup() as tasks:
            tasks.create_task(owns(first, len(NODES)))
            tasks.create_task(owns(second, len(NODES)))
        committed = await first.committed_offsets([*first.assignment()])
        assert all(committed.values()), committed


async def without_quorum(cluster: Cluster, duration_s: float, text: str) -> None:
    cluster.zookeeper.lose_quorum()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(duration_s))  # so that every lease ends
            tasks.create_task(everything_but_elections(cluster, text))
    finally:
        await asyncio.to_thread(cluster.zookeeper.start)


async def topics_are_made(cluster: Cluster, name: str) -> None:
    async with asyncio.timeout(BOUND_S), Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=1, replication_factor=1)


async def test_clients_go_on_without_a_quorum_and_no_session_is_lost(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await everything_but_elections(cluster, "before")
        lives, leaderships = await cluster.lives(), await cluster.leaderships()

        await without_quorum(cluster, 2.5 * SESSION_MS / 1000, "meanwhile")

        await topics_are_made(cluster, "later")
        assert await cluster.lives() == lives
        assert await cluster.leaderships() == leaderships
        await everything_but_elections(cluster, "after")


@pytest.mark.slow
@pytest.mark.timeout(300 + 90 * LOSSES)
async def test_losses_of_the_quorum_for_25_s_cost_no_session(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with running(tmp_path, session_ms=6_000) as cluster:
        await everything_but_elections(cluster, "before")
        lives, leaderships = await cluster.lives(), await cluster.leaderships()
        for loss in range(LOSSES):
            await without_quorum(cluster, 25, f"loss {loss}")

            await topics_are_made(cluster, f"after-{loss}")
            assert await cluster.lives() == lives
            assert await cluster.leaderships() == leaderships
    record_property("figure", f"{LOSSES} losses of the quorum for 25 s, sessions of 6 s: none lost")


async def test_a_broker_stops_cleanly_without_a_quorum(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        cluster.zookeeper.lose_quorum()
        await asyncio.sleep(1.5 * SESSION_MS / 1000)  # no event tells that every lease has ended

        os.kill(cluster.brokers[2].pid, signal.SIGTERM)
        status = await asyncio.to_thread(cluster.brokers[2].wait, BOUND_S)

        assert status == 0
        assert (tmp_path / "b2" / ".kafka_cleanshutdown").exists()


async def test_a_broker_whose_session_expired_registers_again_and_serves(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        before = await cluster.lives()
        cluster.brokers[3].pause()
        async with asyncio.timeout(BOUND_S):
            await until(cluster.lives, lambda lives: lives[3] == -1)

            cluster.brokers[3].resume()

            await until(cluster.lives, lambda lives: lives[3] > before[3])
            await send(cluster, "after")
        assert {**await cluster.lives(), 3: 0} == {**before, 3: 0}


# ---- a blocked event loop

BLOCKABLE: Final = """
import signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: time.sleep(300))
sys.argv[0] = "ottla"
from ottla.broker.server.cli import broker
broker()
"""


async def test_a_broker_with_a_blocked_event_loop_says_where_and_ends(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with ensemble(tmp_path / "zk") as zookeeper:
        settings = {
            "broker.id": "7",
            "zookeeper.connect": zookeeper.connect_string,
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "data"),
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        command = [sys.executable, "-c", BLOCKABLE, "start", "--no-uvloop", *flags]
        with (tmp_path / "log").open("wb") as log:
            broker = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(BOUND_S), KazooSession(zookeeper.connect_string) as session:
                await until(lambda: session.exists(paths.CONTROLLER), lambda stat: stat is not None)
                broker.send_signal(signal.SIGUSR2)
                begun_s = time.monotonic()
                status = await broker.wait()
                took_s = time.monotonic() - begun_s
                await until(lambda: session.exists(paths.broker(7)), lambda stat: stat is None)
        finally:
            with contextlib.suppress(ProcessLookupError):
                broker.kill()
    record_property("figure", f"ended {took_s:.1f} s after its loop, sessions of {SESSION_MS / 1000:g} s")
    said = (tmp_path / "log").read_text()
    assert status == EXIT_STATUS, said
    assert "its event loop is silent silent_ms=" in said
    assert "<lambda>" in said  # where it blocks
