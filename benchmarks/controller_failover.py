"""A controller's failover, and the creation of many partitions, in a cluster of three broker processes.

Run `python benchmarks/controller_failover.py`. All partitions have three replicas. Meanwhile every broker is
asked for its API versions every 20 ms: the slowest answer shows how long its event loop was busy at most.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_BOUND_S = 120.0
_EVERY_S = 0.02
_LOOK_EVERY_S = 0.25
"""Less often: an answer with thousands of partitions costs the broker some of what is measured."""
_SETTINGS = {"auto.leader.rebalance.enable": "false"}


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    async with Connection(Address("127.0.0.1", port), ClientConfig(client_id="benchmark")) as connection:
        yield connection


class Probe:
    """Asks one broker again and again, and keeps its slowest answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.slowest_ms = 0.0

    async def run(self) -> None:
        try:
            async with connected(self._port) as connection:
                while True:
                    begun = time.perf_counter()
                    await connection.send(ApiVersionsRequest(), ApiVersionsResponse)
                    self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - begun) * 1000)
                    await asyncio.sleep(_EVERY_S)
        except ClientError:
            return  # it was killed


@asynccontextmanager
async def probing(cluster: BrokerCluster, what: str) -> AsyncIterator[None]:
    """Print the slowest answers meanwhile, and the processor time of the brokers that survive it."""
    probes = {node: Probe(broker.port) for node, broker in cluster.brokers.items()}
    pids = {node: broker.pid for node, broker in cluster.brokers.items()}
    before = {node: cpu_s(pid) for node, pid in pids.items()}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(probe.run()) for probe in probes.values()]
        begun = time.perf_counter()
        yield
        took_s = time.perf_counter() - begun
        for task in tasks:
            task.cancel()
    slowest = ", ".join(f"{node}: {probe.slowest_ms:.0f}" for node, probe in probes.items())
    after = {node: cpu_s(pid) for node, pid in pids.items()}
    used = ", ".join(f"{node}: {after[node] - before[node]:.2f}" for node in pids if after[node])
    print(f"{what}: {took_s:.2f} s; slowest answers in ms: {slowest}; CPU s: {used}", flush=True)


async def led_within(port: int, topics: list[str], dead: int) -> None:
    """Return once a broker knows a live leader of every partition."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=one) for one in topics])
    async with asyncio.timeout(_BOUND_S), connected(port) as connection:
        while True:
            response = await connection.send(request, MetadataResponse)
            leaders = [p.leader_id for topic in response.topics for p in topic.partitions]
            if leaders and all(leader not in (-1, dead) for leader in leaders):
                return
            await asyncio.sleep(_LOOK_EVERY_S)


async def controller_of(admin: Admin) -> int:
    """Return the id of the controller."""
    while True:
        try:
            for broker in (await admin.brokers.describe()).brokers:
                if broker.is_controller:
                    return broker.id
        except (ClientError, KafkaError):
            pass
        await asyncio.sleep(_EVERY_S)


async def measure(cluster: BrokerCluster, partitions: int, topics: int) -> None:
    """Create the topics one after the other, then kill the controller."""
    names = [f"topic-{number}" for number in range(topics)]
    ports = {node: broker.port for node, broker in cluster.brokers.items()}
    async with Admin(cluster.bootstrap_servers) as admin:
        for name in names:
            async with probing(cluster, f"{partitions} partitions created"):
                await admin.topics.create(name, partitions=partitions, replication_factor=3)
                for port in ports.values():
                    await led_within(port, [name], -1)
        dead = await controller_of(admin)
    async with probing(cluster, f"{partitions * topics} partitions led after the controller's death"):
        cluster.brokers[dead].kill()
        for node, port in ports.items():
            if node != dead:
                await led_within(port, names, dead)


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000, help="of each topic")
    parser.add_argument("--topics", type=int, default=2)
    parser.add_argument("--session-ms", type=int, default=4_000)
    args = parser.parse_args()
    settings = _SETTINGS | {"zookeeper.session.timeout.ms": str(args.session_ms)}
    with tempfile.TemporaryDirectory() as folder, BrokerCluster(Path(folder), settings) as cluster:
        asyncio.run(measure(cluster, args.partitions, args.topics))
        print(f"of which {args.session_ms / 1000:g} s at most are the session timeout")


if __name__ == "__main__":
    main()
