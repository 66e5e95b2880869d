"""Groups that share partitions through ZooKeeper, with members of Apache Kafka 1.1 and of ours together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer.zookeeper.cli import zookeeper_group
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.errors import NoNode
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.testing import Background
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.zookeeper_group import Group, GroupMember, run_kafka_1_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

_numbers = count(1)
BOUND_S = 60.0
KINDS = ["java", "ours"]


@dataclass
class Cluster:
    """A cluster with its ZooKeeper."""

    bootstrap_servers: str
    zookeeper: str
    folder: Path

    def group(self) -> Group:
        return Group(f"group-{next(_numbers)}", self.zookeeper, self.folder)


@pytest.fixture(scope="module", params=["ottla", "kafka-3.9"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        if request.param == "ottla":
            server = stack.enter_context(Background(EmbeddedCoordinator(folder / "zk")))
            hosts = server.value.connect_string
            settings = {"zookeeper.connect": hosts}
            broker = stack.enter_context(BrokerProcess(folder / "broker", settings))
            bootstrap_servers = broker.bootstrap_servers
        else:
            zookeeper = stack.enter_context(ZooKeeper(folder / "zk"))
            hosts = zookeeper.connect_string
            kafka = stack.enter_context(ApacheKafka(folder / "kafka", zookeeper=zookeeper, heap="256m"))
            bootstrap_servers = kafka.bootstrap_servers
        yield Cluster(bootstrap_servers, hosts, folder)


async def make_topic(cluster: Cluster, partitions: int, name: str | None = None) -> str:
    topic = name or f"topic-{next(_numbers)}"
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=partitions, replication_factor=1)
    return topic


async def write(cluster: Cluster, topic: str, partitions: int, numbers: range) -> set[str]:
    """Write numbered values to all partitions; return them."""
    values: set[str] = set()
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in numbers:
            for partition in range(partitions):
                value = f"{partition}-{number}"
                await producer.send(topic, value.encode(), partition=partition)
                values.add(value)
        await producer.flush()
    return values


async def owners(cluster: Cluster, group: Group, topic: str, partitions: int) -> dict[int, str]:
    found: dict[int, str] = {}
    async with KazooSession(cluster.zookeeper) as session:
        for number in range(partitions):
            path = paths.consumer_owner(group.name, topic, number)
            with suppress(NoNode):  # nobody's, or given up at this moment
                found[number] = (await session.get(path))[0].decode()
    return found


async def offsets(cluster: Cluster, group: Group, topic: str, partitions: int) -> list[int]:
    async with KazooSession(cluster.zookeeper) as session:
        return [
            int((await session.get(paths.consumer_offset(group.name, topic, number)))[0])
            for number in range(partitions)
        ]


async def shared(cluster: Cluster, group: Group, topic: str, partitions: int, threads: int) -> dict[int, str]:
    """Wait until all partitions are owned, by so many threads in all."""
    async with asyncio.timeout(BOUND_S):
        while True:
            found = await owners(cluster, group, topic, partitions)
            if len(found) == partitions and len(set(found.values())) == threads:
                return found
            await asyncio.sleep(0.2)


def values(*members: GroupMember) -> Counter[str]:
    return Counter(each.value for member in members for each in member.seen)


async def test_java_and_we_share_a_topic_and_each_partition_has_one_owner(cluster: Cluster) -> None:
    topic = await make_topic(cluster, 5)
    group = cluster.group()
    with group.member("java", topic, 2) as java, group.member("ours", topic, 2) as ours:
        java.joined(), ours.joined()
        found = await shared(cluster, group, topic, 5, 4)

        written = await write(cluster, topic, 5, range(40))
        await asyncio.to_thread(ours.until, lambda: set(values(java, ours)) >= written)

        assert sorted(Counter(found.values()).values()) == [1, 1, 1, 2]
        assert values(java, ours) == Counter(written)
        mine = {each.partition for each in ours.seen}
        assert not mine & {each.partition for each in java.seen}
        assert len(mine) in (2, 3)
    assert await owners(cluster, group, topic, 5) == {}


@pytest.mark.parametrize(("leaves", "stays"), [("java", "ours"), ("ours", "java")])
async def test_offsets_are_handed_over_when_a_member_leaves(
    cluster: Cluster, leaves: str, stays: str
) -> None:
    topic = await make_topic(cluster, 4)
    group = cluster.group()
    first = await write(cluster, topic, 4, range(30))
    with group.member(stays, topic) as staying:
        with group.member(leaves, topic) as leaving:
            staying.joined(), leaving.joined()
            await shared(cluster, group, topic, 4, 2)
            await asyncio.to_thread(staying.until, lambda: set(values(staying, leaving)) >= first)
            leaving.commit()
        await shared(cluster, group, topic, 4, 1)
        before = len(staying.seen)
        second = await write(cluster, topic, 4, range(30, 60))
        await asyncio.to_thread(staying.until, lambda: set(values(staying)) >= second)
        staying.commit()

    # What came after the handover was not preceded by anything that the other had committed.
    after = Counter(each.value for each in staying.seen[before:])
    assert set(after) == second
    assert await offsets(cluster, group, topic, 4) == [60] * 4


@pytest.mark.parametrize(("dies", "stays"), [("java", "ours"), ("ours", "java")])
async def test_a_member_that_is_killed_is_replaced_and_no_record_lost(
    cluster: Cluster, dies: str, stays: str
) -> None:
    topic = await make_topic(cluster, 4)
    group = cluster.group()
    with group.member(stays, topic) as staying:
        with group.member(dies, topic) as dying:
            staying.joined(), dying.joined()
            await shared(cluster, group, topic, 4, 2)
            written = await write(cluster, topic, 4, range(20))
            await asyncio.to_thread(staying.until, lambda: set(values(staying, dying)) >= written)
            dying.kill()
        written |= await write(cluster, topic, 4, range(20, 40))
        await asyncio.to_thread(staying.until, lambda: set(values(staying, dying)) >= written)
        found = await shared(cluster, group, topic, 4, 1)

    assert len(set(found.values())) == 1


@pytest.mark.parametrize(("pauses", "stays"), [("java", "ours"), ("ours", "java")])
async def test_a_member_that_outlives_its_session_joins_again(
    cluster: Cluster, pauses: str, stays: str
) -> None:
    topic = await make_topic(cluster, 4)
    group = cluster.group()
    with group.member(stays, topic) as staying, group.member(pauses, topic) as pausing:
        staying.joined(), pausing.joined()
        before = await shared(cluster, group, topic, 4, 2)
        written = await write(cluster, topic, 4, range(20))
        await asyncio.to_thread(staying.until, lambda: set(values(staying, pausing)) >= written)

        pausing.pause()
        written |= await write(cluster, topic, 4, range(20, 40))
        await asyncio.to_thread(staying.until, lambda: set(values(staying, pausing)) >= written)
        await shared(cluster, group, topic, 4, 1)
        pausing.resume()
        after = await shared(cluster, group, topic, 4, 2)
        written |= await write(cluster, topic, 4, range(40, 60))
        await asyncio.to_thread(staying.until, lambda: set(values(staying, pausing)) >= written)

    assert after == before


async def test_members_come_and_go_and_no_record_is_lost(cluster: Cluster) -> None:
    topic = await make_topic(cluster, 6)
    group = cluster.group()
    members = [group.member(KINDS[number % 2], topic) for number in range(4)]
    written: set[str] = set()
    with ExitStack() as stack:
        for number, member in enumerate(members):
            stack.enter_context(member).joined()
            written |= await write(cluster, topic, 6, range(number * 20, number * 20 + 20))
        await shared(cluster, group, topic, 6, 4)
        for number, member in enumerate(members[:3], 4):
            member.leave() if number % 2 else member.kill()
            written |= await write(cluster, topic, 6, range(number * 20, number * 20 + 20))
        last = members[3]
        await asyncio.to_thread(last.until, lambda: set(values(*members)) >= written)
        assert await shared(cluster, group, topic, 6, 1)

    assert set(values(*members)) == written


async def test_a_wildcard_group_takes_up_a_topic_that_is_made_later(cluster: Cluster) -> None:
    prefix = f"wild-{next(_numbers)}"
    group = cluster.group()
    topics = [await make_topic(cluster, 2, f"{prefix}-a")]
    with (
        group.member("java", f"filter:{prefix}-.*") as java,
        group.member("ours", f"filter:{prefix}-.*") as ours,
    ):
        java.joined(), ours.joined()
        topics.append(await make_topic(cluster, 2, f"{prefix}-b"))
        written = [await write(cluster, topic, 2, range(10)) for topic in topics]
        for topic in topics:
            await shared(cluster, group, topic, 2, 2)
        await asyncio.to_thread(ours.until, lambda: len({each[:3] for each in java.seen + ours.seen}) == 40)

    assert written[0] == written[1]
    assert {each.topic for each in ours.seen} == {each.topic for each in java.seen} == set(topics)


async def test_kafkas_tools_and_ours_say_the_same(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic = await make_topic(cluster, 3)
    group = cluster.group()
    written = await write(cluster, topic, 3, range(5))
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"

    def verified() -> str:
        server = ("--zookeeper.connect", cluster.zookeeper, "--group", group.name)
        return run_kafka_1_tool("kafka.tools.VerifyConsumerRebalance", *server)

    def export() -> None:
        server = ("--zkconnect", cluster.zookeeper, "--group", group.name, "--output-file", str(theirs))
        run_kafka_1_tool("kafka.tools.ExportZkOffsets", *server)
        server = ("--zookeeper", cluster.zookeeper, "--group", group.name, "--output-file", str(ours))
        CliRunner().invoke(zookeeper_group, ["export-offsets", *server], catch_exceptions=False)

    with group.member("ours", topic, 2) as member:
        await asyncio.to_thread(member.joined().until, lambda: set(values(member)) == written)
        member.commit()
        said = await asyncio.to_thread(verified)
    await asyncio.to_thread(export)
    ours_said = sorted(ours.read_text().splitlines())
    assert "Rebalance operation successful" in said
    assert ours_said == sorted(theirs.read_text().splitlines())
    assert len(ours_said) == 3

    ours.write_text(f"/consumers/{group.name}/offsets/{topic}/2:1\n")
    server = ("--zkconnect", cluster.zookeeper, "--input-file", str(ours))
    await asyncio.to_thread(run_kafka_1_tool, "kafka.tools.ImportZkOffsets", *server)
    assert await offsets(cluster, group, topic, 3) == [5, 5, 1]
    record_property("figure", f"{len(ours_said)} offsets exported as Kafka's tool does, and imported by it")


@pytest.mark.parametrize(("old", "new"), [("java", "ours"), ("ours", "java")])
async def test_offsets_move_from_zookeeper_to_kafka_with_dual_commit(
    cluster: Cluster, old: str, new: str
) -> None:
    topic = await make_topic(cluster, 1)
    group = cluster.group()
    first = await write(cluster, topic, 1, range(10))
    with group.member(old, topic) as member:
        member.joined().until(lambda: len(member.seen) == 10)
        member.commit()

    with group.member(new, topic, offsets_storage="kafka", dual_commit_enabled="true") as member:
        member.joined()
        second = await write(cluster, topic, 1, range(10, 20))
        await asyncio.to_thread(member.until, lambda: set(values(member)) >= second)
        member.commit()
        assert not set(values(member)) & first

    async with Admin(cluster.bootstrap_servers) as admin:
        (kept,) = await admin.groups.offsets(group.name, [TopicPartition(topic, 0)])
    assert kept.offset == 20
    assert await offsets(cluster, group, topic, 1) == [20]
    with group.member(old, topic, offsets_storage="kafka", dual_commit_enabled="false") as member:
        member.joined()
        third = await write(cluster, topic, 1, range(20, 30))
        await asyncio.to_thread(member.until, lambda: set(values(member)) >= third)
        assert set(values(member)) == third
