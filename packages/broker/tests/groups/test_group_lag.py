"""Offsets, lag and owners of groups on the metrics page."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.hosting.group_lag import GroupLag
from ottla.broker.groups.kinds import GroupLimits
from ottla.broker.groups.offsets.partition_state import HostedGroup
from ottla.broker.metrics.registry import MetricName
from ottla.broker.runtime.loop_budget import SLICE
from ottla.broker.server.broker import Broker
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator

BOUND_S = 60.0
LINE = re.compile(r"kafka_consumergroup_(\w+)\{(.*)\} (\S+)")
Samples = dict[tuple[str, str, str], float]


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


def broker_on(coordinator: EmbeddedCoordinator, directory: Path, broker_id: int, **more: str) -> Broker:
    settings = {
        "broker.id": str(broker_id),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / str(broker_id)),
        "zookeeper.connect": coordinator.connect_string,
        "metrics.port": "0",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return Broker(
        broker_config_from({**settings, **{name.replace("_", "."): value for name, value in more.items()}})
    )


async def page_of(broker: Broker) -> str:
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    read = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=BOUND_S).read())
    return str(read.decode())


async def samples_of(broker: Broker, group: str = "readers") -> Samples:
    """Return a group's samples by metric, partition and owner."""
    found: Samples = {}
    for name, labels, value in LINE.findall(await page_of(broker)):
        tags = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if tags["consumergroup"] == group:
            found[name, tags.get("partition", ""), tags.get("client_id", "")] = float(value)
    return found


async def until(broker: Broker, condition: Callable[[Samples], bool]) -> Samples:
    async with asyncio.timeout(BOUND_S):
        while not condition(samples := await samples_of(broker)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return samples


async def write(broker: Broker, *partitions: int) -> None:
    async with Producer(f"127.0.0.1:{broker.port}") as producer:
        for partition in partitions:
            await producer.send_and_wait("orders", b"x", partition=partition)


async def read_all(consumer: Consumer, count: int) -> None:
    seen = 0
    async with asyncio.timeout(BOUND_S):
        while seen < count:
            seen += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
    await consumer.commit()


async def test_the_page_shows_the_lag_and_the_owner_of_every_partition_of_a_group(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [1]}))
        await write(broker, 0, 0, 1)
        async with Consumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{broker.port}",
            group_id="readers",
            client_id="reader-1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            await read_all(consumer, 3)
            await write(broker, 0, 0, 0, 0)

            assert await samples_of(broker) == {
                ("members", "", ""): 1,
                ("current_offset", "0", ""): 2,
                ("current_offset", "1", ""): 1,
                ("lag", "0", ""): 4,
                ("lag", "1", ""): 0,
                ("owner", "0", "reader-1"): 1,
                ("owner", "1", "reader-1"): 1,
            }

        left = await until(broker, lambda samples: samples["members", "", ""] == 0)
        assert left["owner", "0", ""] == left["owner", "1", ""] == 0
        assert left["lag", "0", ""] == 4


async def test_a_coordinator_asks_the_leaders_of_partitions_that_it_does_not_hold(
    coordinator: EmbeddedCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.groups.hosting.group_lag.ENDS_EVERY_MS", 100)
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await one.services.topics.create(NewTopic("__consumer_offsets", assignments={0: [1]}))
        await one.services.topics.create(NewTopic("orders", assignments={0: [2]}))
        await write(one, 0, 0)
        async with Consumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{one.port}",
            group_id="readers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            await read_all(consumer, 2)
        await write(one, 0, 0, 0)

        samples = await until(one, lambda samples: samples.get(("lag", "0", "")) == 3)

        assert samples["current_offset", "0", ""] == 2
        assert await samples_of(two) == {}


async def test_groups_beyond_the_limit_are_left_out_whole_and_counted(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1, metrics_group_partitions_max="3") as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [1]}))
        await write(broker, 0, 1)
        for group in ("readers", "others"):
            async with Consumer(
                "orders",
                bootstrap_servers=f"127.0.0.1:{broker.port}",
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                await read_all(consumer, 2)

        page = await page_of(broker)

        shown = {group for group in ("readers", "others") if f'consumergroup="{group}"' in page}
        assert len(shown) == 1
        assert "ottla_broker_consumergroups_partitionsnotshown 2.0" in page.splitlines()


async def test_names_that_clients_make_long_do_not_make_the_page_long(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1]}))
        await write(broker, 0)
        servers = f"127.0.0.1:{broker.port}"
        async with (
            reader(servers, "g" * 300, "c") as nameless,
            reader(servers, "readers", "c" * 20_000) as named,
        ):
            await read_all(nameless, 1)
            await read_all(named, 1)
            page = await page_of(broker)

        assert "ggg" not in page
        assert "ottla_broker_consumergroups_partitionsnotshown 1.0" in page.splitlines()
        assert max(map(len, page.splitlines())) < 500


async def test_topics_that_do_not_exist_are_not_on_the_page(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as broker:
        await broker.services.topics.create(NewTopic("orders", assignments={0: [1]}))
        await write(broker, 0)
        async with Connection(Address("127.0.0.1", broker.port)) as client:
            await assign_itself(client, {"x" * 32_000: range(4_900), "orders": range(-1, 3)})
            page = await page_of(broker)

    assert "xxx" not in page
    assert len(page) < 1_000_000
    owned = [line for line in page.splitlines() if line.startswith("kafka_consumergroup_owner{")]
    assert [re.findall(r'partition="(.*?)",topic="(.*?)"', line) for line in owned] == [[("0", "orders")]]


async def assign_itself(client: Connection, partitions: dict[str, range]) -> None:
    """Join a group as its only member, which is assigned partitions of its own choice."""
    find = FindCoordinatorRequest(key="readers")
    async with asyncio.timeout(BOUND_S):
        while (await client.send(find, FindCoordinatorResponse, max_version=3)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        protocol = JoinGroupRequestProtocol(name="range", metadata=ConsumerProtocolSubscription().to_bytes(0))
        join = JoinGroupRequest(
            group_id="readers",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await client.send(join, JoinGroupResponse, max_version=3)
        assigned = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment(partitions))
        sync = SyncGroupRequest(
            group_id="readers",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assigned],
        )
        assert (await client.send(sync, SyncGroupResponse, max_version=3)).error_code == 0


def assignment(partitions: dict[str, range]) -> bytes:
    topics = [TopicPartitions(topic=topic, partitions=list(found)) for topic, found in partitions.items()]
    return ConsumerProtocolAssignment(assigned_partitions=topics, user_data=b"mine").to_bytes(0)


class NoEnds:
    def end_of(self, partition: TopicPartition) -> int | None:
        return None

    def partitions_of(self, topic: str) -> range:
        return range(1_000_000 if topic == "t" else 0)


def stable_group(name: str, assignments: list[bytes]) -> HostedGroup:
    members = tuple(
        MemberSnapshot(
            member_id=f"member-{number}",
            client_id=f"client-{number}",
            client_host="/127.0.0.1",
            rebalance_timeout_ms=30_000,
            session_timeout_ms=30_000,
            assignment=assigned,
        )
        for number, assigned in enumerate(assignments)
    )
    snapshot = GroupSnapshot(group_id=name, generation=1, protocol_type="consumer", members=members)
    return HostedGroup(Group.restore(snapshot, GroupLimits()), 0)


def sampled(groups: list[HostedGroup], most: int = 5_000) -> list[tuple[MetricName, float] | None]:
    """Return the samples of groups; None is the end of a step without one."""
    return list(GroupLag(lambda: groups, NoEnds(), most).samples())


def test_members_are_looked_at_in_steps() -> None:
    samples = sampled([stable_group("g", [assignment({"t": range(at, at + 1)}) for at in range(5_000)])])

    assert samples.count(None) >= 5_000 / SLICE
    assert samples[0] is None
    owners = [found for found in samples if found is not None and found[0].name == "owner"]
    assert len(owners) == 5_000
    assert all(value == 1 for _, value in owners)


@pytest.mark.parametrize("topic", ["t", "unknown"])
def test_an_assignment_is_read_in_steps_up_to_the_limit(topic: str) -> None:
    shown = sampled([stable_group("g", [assignment({topic: range(4_999)})])])
    beyond = sampled([stable_group("g", [assignment({topic: range(100_000)})] * 10)])

    assert shown.count(None) >= (4_999 // SLICE if topic == "t" else 1)
    assert beyond.count(None) <= 5_000 / SLICE + 11
    name, hidden = beyond[-1] or (None, 0)
    assert name is not None
    assert name.name == "PartitionsNotShown"
    assert hidden == (5_001 if topic == "t" else 0)


def test_assignments_that_are_torn_make_no_page_fail() -> None:
    whole = assignment({"t": range(3), "t2": range(2)})
    torn = [whole[:size] for size in range(len(whole))]
    wrong = [whole[:size] + b"\xff" * 40 for size in range(len(whole))]

    samples = sampled([stable_group("g", [*torn, *wrong, whole])])

    owners = [dict(found[0].tags) for found in samples if found is not None and found[0].name == "owner"]
    of_last = {tags["partition"] for tags in owners if tags["client_id"] == f"client-{2 * len(whole)}"}
    assert of_last == {"0", "1", "2"}


def reader(servers: str, group: str, client_id: str) -> Consumer:
    return Consumer(
        "orders",
        bootstrap_servers=servers,
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
