"""The offsets of share groups, described, set and deleted, on two brokers that each lead a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.share.events import StateInitialized
from ottla.broker.server.broker import Broker
from ottla.broker.share.persister import SharePersister
from ottla.broker.testing import free_port
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.consumer import Consumer, ShareConsumer
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode, NotCoordinator
from ottla.protocol.messages import share_groups as wire
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.schema import Message
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator

BOUND_S = 60.0
R = TypeVar("R", bound=Message)
Offsets = dict[tuple[str, int], tuple[int, int, int]]


class TwoBrokers:
    """Two brokers with the topic `t`: each leads one of its partitions, without a replica of the other's."""

    def __init__(self, brokers: Sequence[Broker], ports: Sequence[int]) -> None:
        self.brokers = brokers
        self.ports = ports

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    async def ask(self, group: str, request: Message, response_type: type[R]) -> R:
        """Send a request to the coordinator of a group."""
        async with asyncio.timeout(BOUND_S):
            while True:
                find = FindCoordinatorRequest(key=group or "any")
                found = await self.send(self.ports[0], find, FindCoordinatorResponse)
                if found.error_code == 0:
                    answer = await self.send(found.port, request, response_type)
                    if not {_error(answer)} & _MOVING:
                        return answer
                await asyncio.sleep(0.05)

    async def send(self, port: int, request: Message, response_type: type[R]) -> R:
        connection = Connection(Address("127.0.0.1", port), ClientConfig(client_id="test"))
        await connection.connect()
        try:
            return await connection.send(request, response_type)
        finally:
            await connection.close()

    async def alter(
        self, group: str, topic: str, *offsets: tuple[int, int]
    ) -> wire.AlterShareGroupOffsetsResponse:
        partitions = [
            wire.AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)
            for number, offset in offsets
        ]
        asked = wire.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
        request = wire.AlterShareGroupOffsetsRequest(group_id=group, topics=[asked])
        return await self.ask(group, request, wire.AlterShareGroupOffsetsResponse)

    async def describe(self, group: str, topics: dict[str, list[int]] | None = None) -> Offsets:
        """Return the start offset, the leader epoch and the lag of each partition."""
        named = None
        if topics is not None:
            named = [
                wire.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
                for name, numbers in topics.items()
            ]
        asked = wire.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=named)
        request = wire.DescribeShareGroupOffsetsRequest(groups=[asked])
        answer = (await self.ask(group, request, wire.DescribeShareGroupOffsetsResponse)).groups[0]
        assert answer.error_code == 0
        assert not any(partition.error_code for topic in answer.topics for partition in topic.partitions)
        return {
            (topic.topic_name, partition.partition_index): (
                partition.start_offset, partition.leader_epoch, partition.lag
            )
            for topic in answer.topics
            for partition in topic.partitions
        }  # fmt: skip

    async def delete(self, group: str, *topics: str) -> wire.DeleteShareGroupOffsetsResponse:
        asked = [wire.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
        request = wire.DeleteShareGroupOffsetsRequest(group_id=group, topics=asked)
        return await self.ask(group, request, wire.DeleteShareGroupOffsetsResponse)


_MOVING = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


def _error(answer: Message) -> int:
    found: Any = answer.groups[0] if isinstance(answer, wire.DescribeShareGroupOffsetsResponse) else answer
    code: int = found.error_code
    return code


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[TwoBrokers]:
    ports = [free_port(), free_port()]
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(EmbeddedCoordinator())
        started = [
            await stack.enter_async_context(
                Broker(
                    broker_config_from(
                        {
                            "broker.id": str(number),
                            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                            "log.dirs": str(tmp_path / str(number)),
                            "zookeeper.connect": coordinator.connect_string,
                            "offsets.topic.num.partitions": "2",
                            "offsets.topic.replication.factor": "1",
                            "share.coordinator.state.topic.num.partitions": "2",
                            "share.coordinator.state.topic.replication.factor": "1",
                            "share.coordinator.state.topic.min.isr": "1",
                        }
                    )
                )
            )
            for number, port in enumerate(ports, 1)
        ]
        await started[0].services.topics.create(NewTopic("t", assignments={0: [1], 1: [2]}))
        async with asyncio.timeout(BOUND_S):
            for broker in started:
                metadata = broker.services.metadata
                await metadata.until(lambda known=metadata: known.leader_of(TopicPartition("t", 1)) == 2)  # type: ignore[misc]
        yield TwoBrokers(started, ports)


async def test_the_lag_of_partitions_that_other_brokers_lead_is_theirs(brokers: TwoBrokers) -> None:
    async with Producer(brokers.servers) as producer:
        for partition, count in ((0, 3), (1, 5)):
            for _ in range(count):
                await producer.send_and_wait("t", b"v", partition=partition)
    await brokers.alter("group", "t", (0, 1), (1, 1))
    asked = wire.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[0, 1])
    group = wire.DescribeShareGroupOffsetsRequestGroup(group_id="group", topics=[asked])

    for port in brokers.ports:
        request = wire.DescribeShareGroupOffsetsRequest(groups=[group])
        answer = await brokers.send(port, request, wire.DescribeShareGroupOffsetsResponse)
        assert [part.lag for part in answer.groups[0].topics[0].partitions] == [2, 4]


async def test_a_group_that_was_never_used_gets_offsets_and_keeps_to_them(brokers: TwoBrokers) -> None:
    unknown = (-1, 0, -1)
    assert await brokers.describe("new") == {}
    asked: dict[str, list[int]] = {"t": [0, 7], "nope": [0]}
    assert await brokers.describe("new", asked) == {
        ("t", 0): unknown, ("t", 7): unknown, ("nope", 0): unknown
    }  # fmt: skip
    assert (await brokers.delete("new", "t")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    refused = await brokers.alter("new", "nope", (0, 1))
    assert refused.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await brokers.delete("new", "t")).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    altered = await brokers.alter("new", "t", (0, 2), (7, 2), (-1, 2))
    codes = [part.error_code for part in altered.responses[0].partitions]
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await brokers.describe("new") == {("t", 0): (2, 0, -2)}

    deleted = await brokers.delete("new", "nope", "t")
    assert [(topic.topic_name, topic.error_code) for topic in deleted.responses] == [("t", 0), ("nope", 3)]
    assert await brokers.describe("new") == {}
    again = await brokers.delete("new", "t")
    assert (again.error_code, again.responses[0].error_code) == (0, 3)
    assert again.responses[0].error_message == "There is no offset information to delete."


async def test_members_that_come_again_read_from_the_offsets_that_were_set_meanwhile(
    brokers: TwoBrokers,
) -> None:
    async with Producer(brokers.servers) as producer:
        for value in (b"0", b"1", b"2"):
            await producer.send_and_wait("t", value, partition=0)
    await brokers.alter("again", "t", (0, 0))
    assert await _read(brokers, "again", 3) == [0, 1, 2]

    altered = await brokers.alter("again", "t", (0, 1))
    assert altered.responses[0].partitions[0].error_code == 0
    assert await _read(brokers, "again", 2) == [1, 2]

    assert not any(list(broker.services.share().partitions) for broker in brokers.brokers)


async def _read(brokers: TwoBrokers, group: str, count: int) -> list[int]:
    """Read and accept so many records as the only member; return their offsets."""
    offsets: list[int] = []
    async with (
        asyncio.timeout(BOUND_S),
        ShareConsumer("t", bootstrap_servers=brokers.servers, group_id=group) as consumer,
    ):
        while len(offsets) < count:
            record = await consumer.getone()
            offsets.append(record.offset)
            record.accept()
            await consumer.commit()
    return offsets


async def test_a_classic_group_keeps_its_offsets_where_share_offsets_are_set(brokers: TwoBrokers) -> None:
    async with Producer(brokers.servers) as producer:
        await producer.send_and_wait("t", b"v", partition=0)
    async with Consumer(
        "t", bootstrap_servers=brokers.servers, group_id="classic", auto_offset_reset="earliest"
    ) as reader:
        async for _ in reader:
            await reader.commit()
            break

    refused = await brokers.alter("classic", "t", (0, 0))
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await brokers.delete("classic", "t")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await brokers.describe("classic") == {}


async def test_offsets_that_the_group_has_not_recorded_are_not_said_to_be_set(
    brokers: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, refused = GroupCoordinator.request, [NotCoordinator()]

    async def refuse_the_first_outcome(self: Any, group_id: str, kind: Any, event: Any, **named: Any) -> Any:
        if isinstance(event, StateInitialized) and refused:
            raise refused.pop()  # the coordinator has moved since the state was set
        return await original(self, group_id, kind, event, **named)

    monkeypatch.setattr(GroupCoordinator, "request", refuse_the_first_outcome)
    await brokers.alter("moved", "t", (0, 2))  # it is repeated while the coordinator moves

    assert not refused
    assert await brokers.describe("moved") == {("t", 0): (2, 0, -2)}


async def test_offsets_beyond_all_records_are_kept_as_they_are(brokers: TwoBrokers) -> None:
    await brokers.alter("far", "t", (0, 2**63 - 1), (1, -5))

    assert await brokers.describe("far") == {("t", 0): (2**63 - 1, 0, 1 - 2**63), ("t", 1): (-5, 0, 5)}


@pytest.mark.parametrize("method", ["initialize", "delete"])
async def test_the_coordinators_of_all_partitions_are_asked_at_once(
    brokers: TwoBrokers, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.alter("at-once", "t", (0, 0), (1, 0))
    original = getattr(SharePersister, method)
    asked = asyncio.Barrier(2)

    async def met(*arguments: Any) -> None:
        await asked.wait()  # for the other partition: one after the other they would wait for ever
        await original(*arguments)

    monkeypatch.setattr(SharePersister, method, met)
    async with asyncio.timeout(BOUND_S):
        if method == "initialize":
            answer = await brokers.alter("at-once", "t", (0, 1), (1, 1))
            assert [one.error_code for topic in answer.responses for one in topic.partitions] == [0, 0]
        else:
            deleted = await brokers.delete("at-once", "t")
            assert [topic.error_code for topic in deleted.responses] == [0]
