"""Brokers of ours and of Apache Kafka 3.9 in one cluster: what moves between them, and what parts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from cluster_chaos import GROUP, PARTITIONS, TOPIC, Clients, Run
from cluster_controllers import controller_kind, move_controller
from cluster_moves import placed, reassign, until, until_in_sync
from cluster_of_nodes import Cluster, start

from ottla.admin import Admin
from ottla.admin.groups import GroupDescription
from ottla.client.cluster import Cluster as ClientCluster
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode, GroupIdNotFound
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from peers.request_counts import used_versions

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

BOUND_S: Final = 120
APACHE: Final = (1, 2)
OTTLA: Final = (3, 4)
OFFSETS_PARTITIONS: Final = 4
EVERY: Final = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
ADVICE: Final = "set inter.broker.protocol.version=2.8 on it and restart it"
METRICS_PORT: Final = 9404
MOVED: Final = {TOPIC: PARTITIONS, GROUP_METADATA_TOPIC: OFFSETS_PARTITIONS}
STEADY: Final = {"offsets.topic.replication.factor": "2", "zookeeper.session.timeout.ms": "30000"}
"""No broker dies: a busy machine must not end the controller's session."""
NEWEST_BETWEEN_BROKERS: Final = {
    ("Fetch", 17), ("LeaderAndIsr", 7), ("UpdateMetadata", 8), ("StopReplica", 4), ("ControlledShutdown", 3),
    ("AlterPartition", 3), ("AllocateProducerIds", 0),
}  # fmt: skip
"""Of Apache Kafka 3.9 at its own level."""


async def begin(servers: str, brokers: tuple[int, int]) -> None:
    """Create the topic on two brokers, and a group's offset, which makes the topic of the groups."""
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        await admin.topics.create(
            TOPIC, assignments=placed(PARTITIONS, brokers), configs={"min.insync.replicas": "2"}
        )
        await admin.groups.commit("other", {EVERY[0]: 7})
    await reassign(servers, MOVED, brokers)


async def group_of(servers: str) -> GroupDescription:
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        return await admin.groups.describe(GROUP)


async def offsets_of(servers: str, group: str) -> dict[TopicPartition, int]:
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        found = await admin.groups.committed(group, EVERY)
    return {one: found[one][0] if one in found else 0 for one in EVERY}


def members_of(servers: str) -> Mapping[str, Sequence[TopicPartition]]:
    """The members with what they own, once all of them own something."""
    found: list[GroupDescription] = []

    def is_complete() -> bool:
        with suppress(GroupIdNotFound):  # nobody has joined yet
            found[:] = [asyncio.run(group_of(servers))]
        if not found:
            return False
        owned = [one.partitions for one in found[0].members]
        return len(owned) == 2 and all(owned) and sum(map(len, owned)) == PARTITIONS

    until(is_complete, lambda: found)
    return {one.id: sorted(one.partitions) for one in found[0].members}


def until_committed_beyond(servers: str, before: Mapping[TopicPartition, int]) -> None:
    found: dict[TopicPartition, int] = {}

    def are_beyond() -> bool:
        found.update(asyncio.run(offsets_of(servers, GROUP)))
        assert all(found[one] >= offset for one, offset in before.items()), (before, found)
        return all(found[one] > offset for one, offset in before.items())

    until(are_beyond, lambda: (before, found))


def until_coordinated_by(servers: str, brokers: tuple[int, int]) -> None:
    """Wait until clients find the group there: until a broker is told that it leads no more, it answers."""

    def found() -> int:
        return asyncio.run(group_of(servers)).coordinator

    until(lambda: found() in brokers, found)


@contextmanager
def loaded(cluster: Cluster, folder: Path) -> Iterator[Run]:
    """Producers with acks=all and a group of two, on a topic of the Apache brokers."""
    asyncio.run(begin(cluster.servers, APACHE))
    cluster.wait_until_served(TOPIC)
    clients = Clients(folder)
    try:
        clients.write(cluster.servers, per_s=50)
        clients.read(cluster.servers, session_ms=60_000)
        yield Run(cluster, clients)
    finally:
        clients.kill()


@pytest.mark.parametrize("controller", ["apache", "ottla"])
def test_a_topic_and_its_group_move_to_ottla_and_back_under_load(tmp_path: Path, controller: str) -> None:
    kinds = ["apache", "apache", "ottla", "ottla"]
    with Cluster(tmp_path, kinds, STEADY) as cluster:
        move_controller(cluster, controller)
        with loaded(cluster, tmp_path) as run:
            servers = cluster.servers
            members = members_of(servers)
            until_committed_beyond(servers, dict.fromkeys(EVERY, 0))
            for brokers in (OTTLA, APACHE):
                before = asyncio.run(offsets_of(servers, GROUP))

                asyncio.run(reassign(servers, MOVED, brokers))

                until_in_sync(cluster, TOPIC, brokers)
                until_coordinated_by(servers, brokers)
                until_committed_beyond(servers, before)
                assert members_of(servers) == members
                assert asyncio.run(offsets_of(servers, "other"))[EVERY[0]] == 7
            words = {each.name: each.last_words() for each in cluster.brokers.values()}
            assert controller_kind(cluster) == controller, words
            run.finish()
        assert run.wrong == []


async def write_through(cluster: Cluster, node: int) -> None:
    """Get a producer id from one broker, and write to partitions that different brokers lead."""
    async with asyncio.timeout(BOUND_S), Admin(cluster.servers) as admin:
        await admin.topics.create(
            "orders", assignments={0: (1, 2), 1: (2, 1)}, configs={"min.insync.replicas": "2"}
        )
    cluster.wait_until_served("orders")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    async with asyncio.timeout(BOUND_S), ClientCluster(cluster.servers) as client:
        answer = await client.send(node, request, InitProducerIdResponse)
        while answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # its controller is being asked
            answer = await client.send(node, request, InitProducerIdResponse)
    assert answer.error_code == 0
    async with asyncio.timeout(BOUND_S), Producer(cluster.servers, acks="all") as producer:
        for partition in (0, 1):
            await producer.send_and_wait("orders", b"v", partition=partition)


async def drop(servers: str) -> None:
    async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
        await admin.topics.delete("orders")


def test_an_apache_broker_of_a_later_level_is_served_in_its_versions(tmp_path: Path) -> None:
    settings = {
        "inter.broker.protocol.version": "3.9",
        "offsets.topic.replication.factor": "2",
        "metrics.host": "0.0.0.0",
        "metrics.allow.anonymous": "true",
        "metrics.port": str(METRICS_PORT),
    }
    with Cluster(tmp_path, ["apache", "ottla"], settings) as cluster:
        apache, ottla = cluster.brokers.values()

        def output() -> str:
            return ottla.output.read_text(errors="replace")

        def in_sync() -> bool:
            return {one.isr for one in cluster.describe("orders").values()} == {frozenset({1, 2})}

        def used() -> set[tuple[str, int]]:
            return used_versions(f"{ottla.address.split(':')[0]}:{METRICS_PORT}")

        apache.stop()
        until(lambda: cluster.controller() == ottla.id, output)
        start(apache)
        asyncio.run(write_through(cluster, apache.id))
        apache.stop()
        start(apache)
        until(in_sync, output)
        to_controller = used()
        ottla.stop()
        until(lambda: cluster.controller() == apache.id, output)
        start(ottla)
        until(in_sync, output)
        asyncio.run(drop(cluster.servers))
        until(lambda: NEWEST_BETWEEN_BROKERS - to_controller - used() == set(), output)
        apache.stop()
        until(lambda: all(words in output() for words in ("level=2.8", "/feature", ADVICE)), output)
