"""Our consumer with `group_protocol="consumer"` (KIP-848) on Apache Kafka 4.4 and on Ottla."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.cluster import Cluster
from ottla.consumer import CommitFailed, Consumer, ConsumerConfig, GroupFailed, RebalanceListener, TopicFilter
from ottla.producer import Producer
from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.topics import TopicPartition
from peers.cluster_commands import command_for
from peers.kraft_kafka import KraftKafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S = 60.0
PARTITIONS = 6
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "2000",
    "group.consumer.session.timeout.ms": "6000",
}


@pytest.fixture(scope="module", params=["kafka-4.4", "ottla"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("broker")
    kind = KraftKafka if request.param == "kafka-4.4" else BrokerProcess
    with kind(directory, SETTINGS) as running:
        yield running.bootstrap_servers


@pytest.fixture
async def topic(servers: str, request: pytest.FixtureRequest) -> str:
    name: str = request.node.originalname.removeprefix("test_")[:60]
    async with Admin(servers) as admin:
        await admin.topics.create(name, partitions=PARTITIONS)
    return name


async def fill(servers: str, topic: str, count: int, since: int = 0) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(since, since + count):
            await producer.send(topic, str(number).encode(), partition=number % PARTITIONS)


def member(servers: str, *topics: str, **settings: Any) -> Consumer:
    group: dict[str, Any] = {
        "group_protocol": "consumer",
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 100,
    }
    return Consumer(*topics, bootstrap_servers=servers, config=ConsumerConfig.of(**group | settings))


async def poll_until(holds: Callable[[], bool], *members: Consumer) -> list[int]:
    """Poll members in turn until a condition holds; return the numbers that they read."""
    read: list[int] = []
    async with asyncio.timeout(BOUND_S):
        while not holds():
            for polled in members:
                found = await polled.getmany(timeout_ms=50)
                read += [int(record.value) for records in found.values() for record in records]
    return read


async def read_until(count: int, *members: Consumer) -> list[int]:
    read: list[int] = []
    async with asyncio.timeout(BOUND_S):
        while len(read) < count:
            for polled in members:
                found = await polled.getmany(timeout_ms=50)
                read += [int(record.value) for records in found.values() for record in records]
    return read


class Diary(RebalanceListener):
    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        assert revoked <= self.consumer.assignment()
        self.events.append(("revoked", revoked))

    async def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
        if assigned:  # a coordinator may have no assignment yet
            self.events.append(("assigned", assigned))

    async def on_partitions_lost(self, lost: frozenset[TopicPartition]) -> None:
        self.events.append(("lost", lost))


async def test_two_members_divide_a_topic_and_the_first_revokes_before_the_second_has(
    servers: str, topic: str
) -> None:
    await fill(servers, topic, 60)
    one, two = member(servers, group_id=topic), member(servers, topic, group_id=topic)
    diary = Diary(one)
    one.subscribe([topic], listener=diary)

    async with one:
        read = await read_until(60, one)
        all_of_it = one.assignment()
        async with two:
            await poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 3, one, two)
            assert one.assignment().isdisjoint(two.assignment())
            await fill(servers, topic, 60, 60)
            read += await read_until(60, one, two)
        await poll_until(lambda: one.assignment() == all_of_it, one)

    assert sorted(read) == list(range(120))
    kinds = [kind for kind, _ in diary.events]
    assert kinds == ["assigned", "revoked", "assigned", "revoked"]


async def test_committed_offsets_are_where_the_next_member_begins(servers: str, topic: str) -> None:
    await fill(servers, topic, 30)
    async with member(servers, topic, group_id=topic, enable_auto_commit=False) as one:
        assert len(await read_until(30, one)) == 30
        await one.commit({TopicPartition(topic, number): 3 for number in range(PARTITIONS)})
        assert await one.committed(TopicPartition(topic, 0)) == 3

    async with member(servers, topic, group_id=topic) as again:
        read = await read_until(12, again)

    assert sorted(read) == list(range(18, 30))


async def test_a_pattern_is_matched_by_the_broker_and_finds_later_topics(servers: str, topic: str) -> None:
    later = f"{topic}-later"
    async with member(servers, group_id=topic) as one, Admin(servers) as admin:
        one.subscribe(pattern=f"{topic}.*")
        await poll_until(lambda: len(one.assignment()) == PARTITIONS, one)
        (described,) = (await admin.groups.describe(topic)).members
        await admin.topics.create(later, partitions=1)
        # Kafka resolves the expression again ten seconds later at the earliest.
        await poll_until(lambda: TopicPartition(later, 0) in one.assignment(), one)

    assert described.topic_pattern == f"{topic}.*"


async def test_a_pattern_of_python_alone_is_matched_here(servers: str, topic: str) -> None:
    async with member(servers, group_id=topic) as one:
        one.subscribe(pattern=rf"{topic}(?!.)")
        await poll_until(lambda: len(one.assignment()) == PARTITIONS, one)
        one.subscribe(pattern=TopicFilter([f"{topic}.*"], deny=".*here"))
        await poll_until(lambda: not one.assignment(), one)


async def test_a_static_member_that_restarts_keeps_its_partitions(servers: str, topic: str) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(member(servers, topic, group_id=topic))
        desk = member(servers, topic, group_id=topic, group_instance_id="desk")
        async with desk:
            await poll_until(lambda: len(desk.assignment()) == len(other.assignment()) == 3, desk, other)
            mine = desk.assignment()
        metrics = other.metrics.rebalance_total
        again = await stack.enter_async_context(
            member(servers, topic, group_id=topic, group_instance_id="desk")
        )
        await poll_until(lambda: again.assignment() == mine, again, other)

        with pytest.raises(GroupFailed, match="still has a member 'desk'"):
            async with member(servers, topic, group_id=topic, group_instance_id="desk") as third:
                await third.getone()
        assert other.metrics.rebalance_total == metrics


async def test_a_member_that_the_group_removed_loses_its_partitions_and_joins_again(
    servers: str, topic: str
) -> None:
    one = member(servers, group_id=topic, enable_auto_commit=False)
    diary = Diary(one)
    one.subscribe([topic], listener=diary)
    async with one, Cluster(servers) as cluster:
        await poll_until(lambda: len(one.assignment()) == PARTITIONS, one)
        leave = ConsumerGroupHeartbeatRequest(
            group_id=topic, member_id=one.group_metadata().member_id, member_epoch=-1
        )
        await cluster.send_to_coordinator(topic, leave, ConsumerGroupHeartbeatResponse)
        with pytest.raises(CommitFailed):
            await one.commit({TopicPartition(topic, 0): 1})

        await poll_until(lambda: [kind for kind, _ in diary.events][1:3] == ["lost", "assigned"], one)
        await one.commit({TopicPartition(topic, 0): 1})


async def test_a_classic_group_moves_member_by_member_and_back(servers: str, topic: str) -> None:
    classic = {"group_protocol": "classic", "partition_assignment_strategy": "range"}
    async with AsyncExitStack() as stack:
        old = member(servers, topic, group_id=topic, heartbeat_interval_ms=200, **classic)
        async with old:
            await poll_until(lambda: len(old.assignment()) == PARTITIONS, old)
            await fill(servers, topic, 60)
            read = await read_until(60, old)
            new = await stack.enter_async_context(member(servers, topic, group_id=topic))
            await poll_until(lambda: len(old.assignment()) == len(new.assignment()) == 3, old, new)
            await fill(servers, topic, 60, 60)
            read += await read_until(60, old, new)
        await poll_until(lambda: len(new.assignment()) == PARTITIONS, new)
        async with member(servers, topic, group_id=topic, heartbeat_interval_ms=200, **classic) as back:
            await poll_until(lambda: len(back.assignment()) == len(new.assignment()) == 3, back, new)
            await fill(servers, topic, 60, 120)
            read += await read_until(60, back, new)

    assert sorted(read) == list(range(180))


async def test_positions_are_paused_sought_and_kept_as_in_a_classic_group(servers: str, topic: str) -> None:
    await fill(servers, topic, 12)
    async with member(servers, topic, group_id=topic) as one:
        await read_until(12, one)
        one.pause(TopicPartition(topic, 0))
        await one.seek_to_beginning()
        rest = await read_until(10, one)
        one.resume(TopicPartition(topic, 0))
        paused = await read_until(2, one)

    assert sorted(rest + paused) == list(range(12))
    assert sorted(paused) == [0, 6]


async def test_the_command_joins_with_the_settings_of_a_consumer(servers: str, topic: str) -> None:
    await fill(servers, topic, 6)
    command = ("consume", topic, "--group", topic, "--from-beginning", "-n", "6", "--exit-at-end")
    read = await asyncio.to_thread(command_for(servers), *command, "-X", "group.protocol=consumer")
    async with Admin(servers) as admin:
        described = await admin.groups.describe(topic)

    assert sorted(read.stdout.split()) == [str(number) for number in range(6)], read.output
    assert described.type == "consumer"


async def test_the_assignor_of_the_group_is_chosen_by_its_name(servers: str, topic: str) -> None:
    async with member(servers, topic, group_id=topic, group_remote_assignor="range"), Admin(servers) as admin:
        assert (await admin.groups.describe(topic)).assignor == "range"

    with pytest.raises(GroupFailed, match="refused this member"):
        async with member(servers, topic, group_id=topic, group_remote_assignor="sticky") as one:
            await one.getone()
