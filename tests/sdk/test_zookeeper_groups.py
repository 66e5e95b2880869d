"""Groups that share partitions through ZooKeeper, on our broker with the embedded coordinator."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.cli import main
from ottla.consumer import NoOffset
from ottla.consumer.zookeeper import (
    MessageStream,
    Whitelist,
    ZookeeperConsumerConfig,
    ZookeeperConsumerConnector,
)
from ottla.consumer.zookeeper.cli import zookeeper_group
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.testing import Background
from peers.processes import free_port

BOUND_S = 60.0


@dataclass(frozen=True)
class Place:
    """A broker, and the ZooKeeper it uses."""

    broker: BrokerProcess
    hosts: str

    @asynccontextmanager
    async def member(self, group: str, **settings: object) -> AsyncIterator[ZookeeperConsumerConnector]:
        properties = {
            "group.id": group,
            "zookeeper.connect": self.hosts,
            "auto.offset.reset": "smallest",
            "rebalance.backoff.ms": 300,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        config = ZookeeperConsumerConfig.from_properties(properties)
        async with ZookeeperConsumerConnector(config) as connector:
            yield connector

    async def topic(self, partitions: int, prefix: str = "t") -> str:
        name = f"{prefix}-{secrets.token_hex(4)}"
        async with Admin(self.broker.bootstrap_servers) as admin:
            await admin.topics.create(name, partitions=partitions, replication_factor=1)
        return name

    async def write(self, topic: str, partitions: int, numbers: range) -> set[str]:
        values = {f"{partition}-{number}" for partition in range(partitions) for number in numbers}
        async with Producer(bootstrap_servers=self.broker.bootstrap_servers) as producer:
            for number in numbers:
                for partition in range(partitions):
                    await producer.send(topic, f"{partition}-{number}".encode(), partition=partition)
            await producer.flush()
        return values

    def command(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(zookeeper_group, [*arguments, "--zookeeper", self.hosts])
        return done.exit_code, done.output

    def ottla(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, [*arguments, "--zookeeper", self.hosts])
        return done.exit_code, done.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("zookeeper-groups")
    with Background(EmbeddedCoordinator(folder / "zookeeper")) as server:
        hosts = server.value.connect_string
        with BrokerProcess(folder / "broker", {"zookeeper.connect": hosts}) as broker:
            yield Place(broker, hosts)


@pytest.fixture(autouse=True)
async def bound() -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        yield


async def take(stream: MessageStream, seen: list[str], enough: Callable[[], bool]) -> None:
    """Read a stream until it is enough."""
    async with asyncio.timeout(BOUND_S):
        while not enough():
            seen.append(((await anext(stream)).value or b"").decode())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_two_members_share_a_topic_and_the_one_that_stays_goes_on(place: Place) -> None:
    topic, group = await place.topic(4), f"g-{secrets.token_hex(4)}"
    seen: list[str] = []
    async with place.member(group) as first:
        (one,) = (await first.create_message_streams({topic: 1}))[topic]
        async with place.member(group) as second:
            (two,) = (await second.create_message_streams({topic: 1}))[topic]
            await until(lambda: len(first.assignment) == 2)
            written = await place.write(topic, 4, range(50))
            async with asyncio.TaskGroup() as tasks:
                for stream in (one, two):
                    tasks.create_task(_all(stream, seen))
                await until(lambda: set(seen) == written)
                assert first.assignment.isdisjoint(second.assignment)
                await second.commit_offsets()
                await second.shutdown()
                await until(lambda: len(first.assignment) == 4)
                written |= await place.write(topic, 4, range(50, 60))
                await until(lambda: set(seen) == written)
                await first.shutdown()

    assert sorted(seen) == sorted(written)


async def _all(stream: MessageStream, seen: list[str]) -> None:
    async for record in stream:
        seen += [(record.value or b"").decode()]


async def saw(seen: list[str], written: set[str]) -> None:
    await until(lambda: set(seen) == written)


async def owns(connector: ZookeeperConsumerConnector, partitions: int) -> None:
    await until(lambda: len(connector.assignment) == partitions)


async def test_a_partition_that_stays_loses_nothing_while_others_come_and_go(place: Place) -> None:
    prefix, group = f"w{secrets.token_hex(4)}", f"g-{secrets.token_hex(4)}"
    topic, seen, written = await place.topic(2, prefix), list[str](), set[str]()
    async with place.member(group, consumer_id="a") as first:
        (stream,) = await first.create_message_streams_by_filter(Whitelist(f"{prefix}.*"))
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_all(stream, seen))
            for number in range(5):
                async with place.member(group, consumer_id="b") as second:
                    await second.create_message_streams_by_filter(Whitelist(f"{prefix}.*"))
                    await owns(first, number + 1)
                    written |= await place.write(topic, 1, range(number * 10, number * 10 + 10))
                    await saw(seen, written)
                await place.topic(2, prefix)
                await owns(first, 2 * (number + 2))
            reading.cancel()

    assert seen == [f"0-{number}" for number in range(50)]


async def test_a_broker_that_restarts_interrupts_and_loses_nothing(place: Place) -> None:
    topic, group = await place.topic(2), f"g-{secrets.token_hex(4)}"
    seen: list[str] = []
    async with place.member(group, offsets_storage="kafka") as connector:
        (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
        written = await place.write(topic, 2, range(10))
        await take(stream, seen, lambda: set(seen) == written)
        await asyncio.to_thread(place.broker.restart)
        written |= await place.write(topic, 2, range(10, 20))
        await take(stream, seen, lambda: set(seen) == written)
        await connector.commit_offsets()

    assert len(seen) == 40


async def test_offsets_and_owners_are_shown_with_the_commands_of_other_groups(
    place: Place, tmp_path: Path
) -> None:
    topic, group = await place.topic(1), f"g-{secrets.token_hex(4)}"
    seen: list[str] = []
    async with place.member(group, consumer_id="me") as connector:
        (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
        written = await place.write(topic, 1, range(10))
        await take(stream, seen, lambda: set(seen) == written)
        await connector.commit_offsets()
        status, shown = await asyncio.to_thread(place.ottla, "group", "offsets", group, "--json")
        verified = await asyncio.to_thread(place.ottla, "group", "verify-rebalance", group)

    assert status == 0, shown
    (row,) = json.loads(shown)
    assert (row["offset"], row["log_end"], row["lag"], row["owner"]) == (10, 10, 0, f"{group}_me-0")
    assert verified == (0, f"Every partition that {group} reads has an owner.\n")
    status, lines = await asyncio.to_thread(place.ottla, "zookeeper", "export-offsets", "--group", group)
    assert (status, lines) == (0, f"/consumers/{group}/offsets/{topic}/0:10\n")
    (tmp_path / "offsets").write_text(lines.replace(":10", ":4"))
    done = await asyncio.to_thread(place.ottla, "zookeeper", "import-offsets", str(tmp_path / "offsets"))
    assert done == (0, f"Set 1 offset of group {group}.\n")
    _, shown = await asyncio.to_thread(place.ottla, "group", "offsets", group, "--json")
    assert json.loads(shown)[0]["lag"] == 6


async def test_the_tools_show_verify_export_import_and_move_offsets(place: Place, tmp_path: Path) -> None:
    topic, group = await place.topic(2), f"g-{secrets.token_hex(4)}"
    seen: list[str] = []
    async with place.member(group, consumer_id="me") as connector:
        (stream,) = (await connector.create_message_streams({topic: 1}))[topic]
        written = await place.write(topic, 2, range(10))
        await take(stream, seen, lambda: set(seen) == written)
        await connector.commit_offsets()
        await place.write(topic, 1, range(10, 15))
        status, shown = await asyncio.to_thread(place.command, "describe", group, "--json")
        verified = await asyncio.to_thread(place.command, "verify", group)
        refused = await asyncio.to_thread(place.command, "move-to-kafka", group)

    assert status == 0
    owner = f"{group}_me-0"
    assert json.loads(shown) == [
        {"group": group, "topic": topic, "pid": 0, "offset": 10, "log_size": 15, "lag": 5, "owner": owner},
        {"group": group, "topic": topic, "pid": 1, "offset": 10, "log_size": 10, "lag": 0, "owner": owner},
    ]
    assert verified == (0, f"Every partition that {group} reads has an owner.\n")
    assert refused[0] == 2
    assert "is still in group" in refused[1]

    file = tmp_path / "offsets"
    assert await asyncio.to_thread(
        place.command, "export-offsets", "--group", group, "--output-file", str(file)
    ) == (0, "")
    assert file.read_text().splitlines()[1] == f"/consumers/{group}/offsets/{topic}/1:10"
    file.write_text(f"/consumers/{group}/offsets/{topic}/1:3\n")
    assert (await asyncio.to_thread(place.command, "import-offsets", str(file)))[0] == 0
    moved = await asyncio.to_thread(place.command, "move-to-kafka", group)
    assert moved == (0, f"Committed 2 offsets of group {group} to Kafka.\n")
    async with Admin(place.broker.bootstrap_servers) as admin:
        kept = await admin.groups.offsets(group)
    assert {each.partition: each.offset for each in kept} == {
        TopicPartition(topic, 0): 10,
        TopicPartition(topic, 1): 3,
    }


async def test_a_topic_that_is_deleted_leaves_the_others_alone(place: Place) -> None:
    prefix, group = f"w{secrets.token_hex(4)}", f"g-{secrets.token_hex(4)}"
    gone, stays = await place.topic(2, prefix), await place.topic(2, prefix)
    seen, written = list[str](), set[str]()
    async with place.member(group) as member:
        (stream,) = await member.create_message_streams_by_filter(Whitelist(f"{prefix}.*"))
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_all(stream, seen))
            written |= await place.write(stays, 2, range(10))
            await saw(seen, written)
            async with Admin(place.broker.bootstrap_servers) as admin:
                await admin.topics.delete(gone)
            await owns(member, 2)
            written |= await place.write(stays, 2, range(10, 20))
            await saw(seen, written)
            reading.cancel()

    assert sorted(seen) == sorted(written)


async def test_an_offset_that_is_not_in_the_log_is_reset(place: Place) -> None:
    topic, group = await place.topic(1), f"g-{secrets.token_hex(4)}"
    written = await place.write(topic, 1, range(10))
    seen: list[str] = []
    async with place.member(group) as member:
        await member.create_message_streams({topic: 1})
        await member.commit_offsets({TopicPartition(topic, 0): 5_000})
    async with place.member(group) as member:
        (stream,) = (await member.create_message_streams({topic: 1}))[topic]
        await take(stream, seen, lambda: set(seen) == written)
        await member.commit_offsets()
    _, shown = await asyncio.to_thread(place.command, "describe", group, "--json")

    assert json.loads(shown)[0]["offset"] == 10


async def test_without_a_reset_a_missing_offset_is_raised_by_the_stream(place: Place) -> None:
    topic, group = await place.topic(1), f"g-{secrets.token_hex(4)}"
    await place.write(topic, 1, range(3))
    async with place.member(group, auto_offset_reset="none") as member:
        (stream,) = (await member.create_message_streams({topic: 1}))[topic]
        with pytest.raises(NoOffset):
            await anext(stream)


async def test_a_broker_that_comes_back_elsewhere_is_found(place: Place) -> None:
    topic, group = await place.topic(2), f"g-{secrets.token_hex(4)}"
    seen: list[str] = []
    async with place.member(group) as member:
        (stream,) = (await member.create_message_streams({topic: 1}))[topic]
        written = await place.write(topic, 2, range(10))
        await take(stream, seen, lambda: set(seen) == written)
        await asyncio.to_thread(place.broker.stop)
        place.broker.port = free_port()
        await asyncio.to_thread(place.broker.start)
        written |= await place.write(topic, 2, range(10, 20))
        await take(stream, seen, lambda: set(seen) == written)

    assert len(seen) == 40
