"""UpdateMetadata of a replaced controller, which waits while the new one changes roles."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import update_metadata
from ottla.broker.api.testing import DataPlane
from ottla.broker.cluster.metadata import NO_ID, MetadataCache
from ottla.broker.replication.partition import Assignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition

BOUND_S = 30.0
T0 = TopicPartition("t", 0)


class World:
    """Broker 1, which leads a partition; `gate` holds its changes of roles back."""

    def __init__(self, root: Path) -> None:
        self.plane = DataPlane(root)
        self.gate = asyncio.Event()
        self.is_held = asyncio.Event()
        self.published: list[tuple[set[str], list[str]]] = []
        self.metadata = MetadataCache(1)
        self.metadata.told_by = (1, 1)
        self.services: Any = SimpleNamespace(
            configs=self,
            controller=self,
            groups=self,
            metadata=self.metadata,
            replicas=self.plane.replicas,
            topics=self,
        )

    async def ensure_topics(self, _: object) -> None:
        """No topic has settings."""

    def topics_published(self, topics: Collection[str], replaced: Collection[str]) -> None:
        self.published.append((set(topics), list(replaced)))

    async def existing(self) -> None:
        """ZooKeeper does not answer."""

    def is_stale_broker_epoch(self, _: int) -> bool:
        return False

    async def lead(self, leader_epoch: int) -> None:
        role = Assignment(
            controller_epoch=leader_epoch,
            leader=1,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            isr=(1,),
            replicas=(1, 2),
        )
        await self.plane.replicas.apply([(T0, None, role)])

    async def lead_at_the_gate(self, leader_epoch: int) -> None:
        async def wait(topic_partitions: Iterable[TopicPartition]) -> None:
            assert list(topic_partitions) == [T0]
            self.is_held.set()
            await self.gate.wait()

        self.plane.logs.make_way = wait  # type: ignore[method-assign]
        await self.lead(leader_epoch)

    async def told(
        self, controller_epoch: int, *states: UpdateMetadataPartitionState, topic_id: UUID = NO_ID
    ) -> ErrorCode:
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=list(states))
        topics = [topic] if states else []
        request = UpdateMetadataRequest(
            controller_id=controller_epoch,
            controller_epoch=controller_epoch,
            broker_epoch=1,
            topic_states=topics,
        )
        return ErrorCode((await update_metadata.apply(self.services, request)).error_code)


def moved_away(leader_epoch: int) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(leader=2, leader_epoch=leader_epoch, isr=[2], replicas=[2, 3])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_leadership_of_a_later_epoch_survives_the_news_of_an_earlier_move(world: World) -> None:
    await world.lead(1)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(world.lead_at_the_gate(3))
        await world.is_held.wait()
        telling = tasks.create_task(world.told(1, moved_away(2)))
        await asyncio.sleep(0)
        world.gate.set()
        await telling

    assert world.plane.replicas.leader(T0).leader_epoch == 3


async def test_metadata_of_a_replaced_controller_that_waited_is_refused(world: World) -> None:
    await world.lead(1)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(world.lead_at_the_gate(3))
        await world.is_held.wait()
        telling = tasks.create_task(world.told(1, moved_away(2)))
        await asyncio.sleep(0)
        assert await world.told(2) is ErrorCode.NONE
        world.gate.set()

        assert await telling is ErrorCode.STALE_CONTROLLER_EPOCH

    assert world.metadata.controller_epoch == 2


async def test_a_topic_with_another_id_counts_as_replaced(world: World) -> None:
    for topic_id in (0, 1, 1, 0, 2):  # zeros: a controller that knows no ids
        await world.told(1, moved_away(2), topic_id=UUID(int=topic_id))

    assert world.published == [({"t"}, []), ({"t"}, []), ({"t"}, []), ({"t"}, []), ({"t"}, ["t"])]
