"""Apache Kafka's own tool moves partitions between our brokers."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from ottla.admin import Admin
from ottla.broker.testing import BrokerCluster
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
BOUND_S = 120


def verify_until(count: int, words: str, *arguments: str) -> str:
    """Run the tool until it says the words so often; return what it says."""
    deadline_s, verified = time.monotonic() + BOUND_S, ""
    while verified.count(words) < count:
        assert time.monotonic() < deadline_s, verified
        verified = run_tool(TOOL, *arguments, "--verify")
    return verified


async def test_kafkas_tool_moves_partitions_and_verifies_that_they_have_moved(
    ottla_cluster: BrokerCluster, tmp_path: Path
) -> None:
    wanted = {0: [2, 3], 1: [3]}
    moves = [{"topic": "orders", "partition": each, "replicas": to} for each, to in wanted.items()]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    servers = ("--bootstrap-server", ottla_cluster.bootstrap_servers)
    async with Admin(ottla_cluster.bootstrap_servers) as admin:
        await admin.topics.create("orders", assignments={0: [1], 1: [2]})

        begun = run_tool(TOOL, *servers, "--reassignment-json-file", str(plan), "--execute")

        assert "Successfully started partition reassignments for orders-0,orders-1" in begun
        verify_until(len(wanted), "is completed", *servers, "--reassignment-json-file", str(plan))
        found = (await admin.topics.describe("orders")).partitions
        assert {each: list(found[each].replicas) for each in wanted} == wanted


async def place_of(admin: Admin, broker: int, partition: TopicPartition) -> Path:
    """The log directory of a replica; the copy of a move is no replica."""
    (found,) = [
        Path(each.path)
        for each in await admin.brokers.log_dirs(broker)
        for replica in each.replicas
        if replica.partition == partition and not replica.is_future
    ]
    return found


async def written(servers: str, count: int) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", b"%d" % number, partition=number % 2)


async def read(servers: str, count: int) -> list[bytes]:
    async with AIOKafkaConsumer(
        "orders", bootstrap_servers=servers, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(BOUND_S):
            return [(await consumer.getone()).value for _ in range(count)]


async def test_kafkas_tool_moves_replicas_between_log_directories_and_into_one_of_another_broker(
    tmp_path: Path,
) -> None:
    places = {node: [tmp_path / f"{node}-{name}" for name in "ab"] for node in (1, 2)}
    own = {node: {"log.dirs": ",".join(map(str, paths))} for node, paths in places.items()}
    with BrokerCluster(tmp_path / "cluster", size=2, of_broker=own) as cluster:
        async with Admin(cluster.bootstrap_servers) as admin:
            await admin.topics.create("orders", assignments={0: [1], 1: [1]})
            await written(cluster.bootstrap_servers, 100)
            before = await place_of(admin, 1, TopicPartition("orders", 0))
            (beside,) = set(places[1]) - {before}
            moves = [
                {"topic": "orders", "partition": 0, "replicas": [1], "log_dirs": [str(beside)]},
                {"topic": "orders", "partition": 1, "replicas": [2], "log_dirs": [str(places[2][1])]},
            ]
            plan = tmp_path / "plan.json"
            plan.write_text(json.dumps({"version": 1, "partitions": moves}))
            tool = ("--bootstrap-server", cluster.bootstrap_servers, "--reassignment-json-file", str(plan))

            begun = run_tool(TOOL, *tool, "--execute")

            assert begun.count("Successfully started moving log directory to") == 2
            verified = verify_until(2, "completed successfully", *tool)
            assert "Reassignment of replica orders-1-2 completed successfully." in verified
            assert await place_of(admin, 1, TopicPartition("orders", 0)) == beside
            assert await place_of(admin, 2, TopicPartition("orders", 1)) == places[2][1]
        assert sorted(await read(cluster.bootstrap_servers, 100)) == sorted(b"%d" % n for n in range(100))
