"""Clients in other languages ride through a rolling restart: no record lost, written or read twice."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.consumer import Consumer, TopicPartition
from peers.fetched_programs import go_program, node_modules
from peers.java import compile_program
from peers.maven import KAFKA_3, KAFKA_4, kafka_clients
from peers.riding_program import RidingProgram
from peers.rolling_restart import restart_all

pytestmark = pytest.mark.timeout(900)

HERE: Final = Path(__file__).parent
PARTITIONS: Final = 3
BOUND_S: Final = 60


def java(version: str) -> list[str]:
    path, program = kafka_clients(version), HERE / "java" / "RidingClient.java"
    classes = compile_program(program, path)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", "-Xmx256m", quiet, "-cp", f"{classes}{os.pathsep}{path}", program.stem]


def kafkajs() -> list[str]:
    modules = node_modules("kafkajs@2.2.4")
    return ["env", f"NODE_PATH={modules}", "node", str(HERE / "javascript" / "kafkajs.js")]


CLIENTS: Final[dict[str, Callable[[], list[str]]]] = {
    "java-3": lambda: java(KAFKA_3),
    "java-4": lambda: java(KAFKA_4),
    "franz-go": lambda: [str(go_program(HERE / "go" / "franz_go.go", "github.com/twmb/franz-go@v1.22.2"))],
    "kafkajs": kafkajs,
}
READS_AGAIN: Final = {"kafkajs"}
"""Clients whose members start again at their last commit when a leader or the coordinator has moved."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path, {"min.insync.replicas": "2"}) as running:
        yield running


@pytest.mark.parametrize(
    "client", [pytest.param(one, marks=pytest.mark.java if "java" in one else ()) for one in CLIENTS]
)
def test_every_record_is_kept_and_read_once_in_order_while_all_brokers_restart(
    cluster: BrokerCluster, client: str
) -> None:
    command = CLIENTS[client]()
    asyncio.run(create_topic(cluster))
    with RidingProgram(command, cluster.bootstrap_servers, "ride", "readers") as program:
        program.wait_until_read(20)
        asyncio.run(restart(cluster))
        program.wait_until_read(program.written_count + 20)
        program.finish()

    gaps = ", ".join(f"{kind} nothing for {longest_s:.2f} s" for kind, longest_s in program.longest_s.items())
    print(f"{client}: {program.written_count} records, at most {gaps}")
    for partition, numbers in program.wrote.items():
        assert numbers == list(range(partition, program.written_count, PARTITIONS))
    assert asyncio.run(kept(cluster)) == program.wrote
    read = first_readings(program.read) if client in READS_AGAIN else program.read
    assert read == program.wrote


async def create_topic(cluster: BrokerCluster) -> None:
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create("ride", partitions=PARTITIONS, replication_factor=3)


async def restart(cluster: BrokerCluster) -> None:
    async with Admin(cluster.bootstrap_servers) as admin:
        await restart_all(cluster, admin, "ride")


async def kept(cluster: BrokerCluster) -> dict[int, list[int]]:
    """Return what the log of each partition has, in order."""
    partitions = [TopicPartition("ride", partition) for partition in range(PARTITIONS)]
    found: dict[int, list[int]] = defaultdict(list)
    servers = cluster.bootstrap_servers
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        count = sum((await consumer.end_offsets(partitions)).values())
        async with asyncio.timeout(BOUND_S):
            for _ in range(count):
                record = await consumer.getone()
                found[record.partition].append(int(record.value or b""))
    return found


def first_readings(read: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the numbers of each partition without those that had been read before."""
    return {partition: list(dict.fromkeys(numbers)) for partition, numbers in read.items()}
