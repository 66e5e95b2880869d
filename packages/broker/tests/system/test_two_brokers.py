"""Two brokers over one coordinator: the controller over the network."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.broker.testing import free_port
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.znodes import TopicAssignment

BOUND_S = 60.0


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


def broker_on(coordinator: EmbeddedCoordinator, directory: Path, broker_id: int, **settings: str) -> Broker:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    return Broker(
        broker_config_from(
            {
                "broker.id": str(broker_id),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(directory / str(broker_id)),
                "zookeeper.connect": coordinator.connect_string,
                **dotted,
            }
        )
    )


async def both_know(brokers: list[Broker], topic: str, leaders: dict[int, int]) -> None:
    """Wait until every broker's metadata names these leaders by partition."""

    def knows(metadata: MetadataCache) -> bool:
        wanted = leaders.items()
        return all(metadata.leader_of(TopicPartition(topic, number)) == leader for number, leader in wanted)

    async with asyncio.timeout(BOUND_S):
        for broker in brokers:
            metadata = broker.services.metadata
            await metadata.until(partial(knows, metadata))


async def create_replicated(broker: Broker, topic: str, partitions: dict[int, tuple[int, ...]]) -> None:
    """Write the assignment of a topic with several replicas, which CreateTopics refuses so far."""
    node = TopicAssignment(topic, partitions, uuid.uuid4())
    await broker.services.zookeeper.create(node.path, node.encode())


async def test_the_controller_gives_roles_to_brokers_over_the_network(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await two.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [2]}))

        await both_know([one, two], "orders", {0: 1, 1: 2})
        assert two.services.replicas.leader(TopicPartition("orders", 1)).leader_epoch == 0
        assert [one.services.controller.is_active, two.services.controller.is_active] == [True, False]


async def test_a_topic_is_deleted_on_every_broker(coordinator: EmbeddedCoordinator, tmp_path: Path) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await one.services.topics.create(NewTopic("orders", assignments={0: [1], 1: [2]}))
        await both_know([one, two], "orders", {0: 1, 1: 2})

        await two.services.topics.delete("orders")

        assert await two.services.topics.wait_until_gone("orders", BOUND_S * 1000)
        assert two.services.logs.get(TopicPartition("orders", 1)) is None


async def test_when_the_controller_leaves_the_other_broker_takes_over(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(broker_on(coordinator, tmp_path, 1))
        async with broker_on(coordinator, tmp_path, 2) as two:
            await create_replicated(one, "orders", {0: (1, 2)})
            await both_know([one, two], "orders", {0: 1})

            await stack.aclose()

            await both_know([two], "orders", {0: 2})
            async with asyncio.timeout(BOUND_S):
                await two.services.metadata.until(lambda: two.services.metadata.controller_id == 2)


async def test_a_broker_that_is_not_controller_hands_its_leaderships_over_before_it_goes(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, AsyncExitStack() as stack:
        two = await stack.enter_async_context(broker_on(coordinator, tmp_path, 2))
        await create_replicated(one, "orders", {0: (2, 1)})
        await both_know([one, two], "orders", {0: 2})

        assert await two.parts.handover.try_once()

        await both_know([one, two], "orders", {0: 1})


async def test_brokers_move_to_a_listener_of_their_own_one_after_the_other(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    """Each works beside one that has not moved yet, whichever of them is the controller."""
    ports = {number: (free_port(), free_port()) for number in (1, 2)}
    own = {"inter.broker.listener.name": "BROKERS", "inter.broker.networks": "127.0.0.0/8"}

    def made(number: int, **settings: str) -> Broker:
        clients, brokers = ports[number]
        places = f"CLIENTS://127.0.0.1:{clients},BROKERS://127.0.0.1:{brokers}"
        protocols = {"listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT"}
        return broker_on(coordinator, tmp_path, number, listeners=places, **protocols, **settings)

    for number, (first, second) in enumerate((((2, {}), (1, own)), ((1, own), (2, {})))):
        async with made(first[0], **first[1]) as controller, made(second[0], **second[1]) as other:
            assert controller.services.controller.is_active
            topic = f"written-{number}"
            await controller.services.topics.create(NewTopic(topic, assignments={0: [1, 2], 1: [2, 1]}))
            await both_know([controller, other], topic, {0: 1, 1: 2})
            async with Producer(f"127.0.0.1:{ports[1][0]}", acks="all") as producer:
                for partition in (0, 1):
                    await producer.send_and_wait(topic, b"v", partition=partition)


async def test_a_second_broker_with_the_same_id_is_refused(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path / "a", 1):
        with pytest.raises(StartupRefused, match="a broker with id 1 is registered already"):
            async with broker_on(coordinator, tmp_path / "b", 1):
                pass


async def test_a_setting_changed_through_one_broker_reaches_the_other(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async with broker_on(coordinator, tmp_path, 1) as one, broker_on(coordinator, tmp_path, 2) as two:
        await one.services.topics.create(NewTopic("orders", assignments={0: [2]}))
        await both_know([one, two], "orders", {0: 2})

        log = two.services.logs.get(TopicPartition("orders", 0))
        assert log is not None
        changed = asyncio.Event()
        two.services.configs.on_topic_change.append(lambda *_: changed.set())

        await one.services.configs.alter_topic("orders", lambda _: {"retention.ms": "77"})

        async with asyncio.timeout(BOUND_S):
            await changed.wait()
        assert log.config.retention_ms == 77


async def test_ids_are_generated_above_the_reserved_ones_and_kept(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    async def start(directory: str) -> int:
        config = broker_config_from(
            {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(tmp_path / directory),
                "zookeeper.connect": coordinator.connect_string,
            }
        )
        async with Broker(config) as broker:
            return broker.broker_id

    first, second = await start("a"), await start("b")

    assert first > 1000
    assert second == first + 1
    assert await start("a") == first
