"""Creating, enlarging and deleting topics over an ensemble in memory.

More than 500 lines because all of its tests share `World`.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.cluster.placement import assign_replicas
from ottla.broker.cluster.registration import make_roots
from ottla.broker.cluster.topic_settings import read_settings
from ottla.broker.cluster.topics import NewTopic, Topics
from ottla.broker.config import broker_config_from
from ottla.broker.controller.testing import LoopClock, run_in_virtual_time
from ottla.broker.runtime.environment import Environment
from ottla.protocol import errors
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC
from ottla.zookeeper import paths
from ottla.zookeeper.errors import OperationTimeout
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import ConfigEntity, TopicAssignment


class World:
    """What a broker among three others would have at hand."""

    def __init__(self, session: MemorySession, seed: int = 7, **settings: str) -> None:
        self.session = session
        self.metadata = MetadataCache(0)
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        config = broker_config_from(dotted)
        environment = Environment(clock=LoopClock(), random=Random(seed))
        self.topics = Topics(session, config, environment, self.metadata)
        self.tell()

    def tell(self, *topics: str) -> None:
        """Let the controller speak."""
        endpoint = UpdateMetadataEndpoint(port=9092, host="h", listener="PLAINTEXT", security_protocol=0)
        state = UpdateMetadataPartitionState(partition_index=0, leader=1, replicas=[1], isr=[1])
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=1,
                live_brokers=[UpdateMetadataBroker(id=broker, endpoints=[endpoint]) for broker in (1, 2, 3)],
                topic_states=[
                    UpdateMetadataTopicState(topic_name=t, topic_id=uuid.uuid4(), partition_states=[state])
                    for t in topics
                ],
            )
        )

    async def assignment(self, topic: str) -> TopicAssignment:
        return TopicAssignment.decode(topic, (await self.session.get(paths.topic(topic)))[0])

    async def settings(self, topic: str) -> dict[str, str]:
        data, _ = await self.session.get(paths.config_entity("topics", topic))
        return dict(ConfigEntity.decode(f"topics/{topic}", data).config)


@pytest.fixture
async def session() -> AsyncIterator[MemorySession]:
    async with MemoryEnsemble().session() as session:
        await make_roots(session)
        yield session


async def test_a_topic_gets_partitions_replicas_an_id_and_its_settings(session: MemorySession) -> None:
    world = World(session)

    created = await world.topics.create(NewTopic("orders", 4, 2, configs={"retention.ms": "1000"}))

    node = await world.assignment("orders")
    assert (len(node.partitions), {len(r) for r in node.partitions.values()}) == (4, {2})
    assert node.topic_id == created.id
    assert await world.settings("orders") == {"retention.ms": "1000"}


async def test_counts_that_are_not_given_are_the_brokers_defaults(session: MemorySession) -> None:
    world = World(session, num_partitions="3", default_replication_factor="2")

    created = await world.topics.create(NewTopic("orders"))

    assert (created.partitions, created.replication_factor) == (3, 2)


async def test_replicas_can_be_placed_by_hand(session: MemorySession) -> None:
    world = World(session)

    await world.topics.create(NewTopic("orders", assignments={0: [3, 1], 1: [1, 2]}))

    assert (await world.assignment("orders")).partitions == {0: (3, 1), 1: (1, 2)}


@pytest.mark.parametrize(("partitions", "beside"), [(10, False), (50_000, True)])
async def test_many_partitions_are_placed_and_encoded_once_beside_the_loop(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch, partitions: int, beside: bool
) -> None:
    world = World(session)
    loop_thread = threading.get_ident()
    done: list[tuple[str, bool]] = []

    def noting(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            done.append((name, threading.get_ident() != loop_thread))
            return of(*arguments, **named)

        return called

    placing = noting("place", assign_replicas)
    monkeypatch.setattr("ottla.broker.cluster.topics.assign_replicas", placing)
    monkeypatch.setattr(TopicAssignment, "encode", noting("encode", TopicAssignment.encode))
    await world.topics.create(NewTopic("orders", partitions, 1))
    created, done[:] = list(done), []
    await world.topics.create(NewTopic("small", 1, 1))
    done.clear()
    await world.topics.add_partitions("small", partitions, None)

    assert created == [("place", beside), ("encode", beside)]
    assert done == [("place", beside), ("encode", beside)]


async def test_a_topic_may_have_as_many_partitions_as_the_default_says(session: MemorySession) -> None:
    world = World(session)

    await world.topics.create(NewTopic("orders", 50_000, 1))

    assert len((await world.assignment("orders")).partitions) == 50_000
    with pytest.raises(errors.InvalidPartitions, match="50000"):
        await world.topics.create(NewTopic("more", 50_001, 1))


@pytest.mark.parametrize("validate_only", [False, True])
async def test_more_partitions_than_a_znode_holds_are_refused(
    session: MemorySession, validate_only: bool
) -> None:
    world = World(session, max_partitions_per_topic="1000000")
    await world.topics.create(NewTopic("small", 1, 3))

    with pytest.raises(errors.InvalidPartitions, match="fewer partitions, or for fewer replicas"):
        await world.topics.create(NewTopic("orders", 80_000, 3), validate_only=validate_only)
    with pytest.raises(errors.InvalidPartitions, match="fewer partitions, or for fewer replicas"):
        await world.topics.add_partitions("small", 80_000, None, validate_only=validate_only)

    assert await session.children(paths.BROKER_TOPICS) == ["small"]
    assert len((await world.assignment("small")).partitions) == 1


async def test_settings_that_no_znode_holds_are_invalid(session: MemorySession) -> None:
    world = World(session)
    throttled = ",".join(f"{partition}:1001" for partition in range(100_000))

    with pytest.raises(errors.InvalidConfig, match="too large for ZooKeeper"):
        await world.topics.create(
            NewTopic("orders", configs={"leader.replication.throttled.replicas": throttled})
        )

    assert await session.children(paths.BROKER_TOPICS) == []


@pytest.mark.parametrize("turns", range(40))
async def test_a_name_with_a_dot_does_not_collide_with_itself_when_two_create_it(
    session: MemorySession, turns: int
) -> None:
    world = World(session)

    async def create_later() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await world.topics.create(NewTopic("orders.failed"))

    first = world.topics.create(NewTopic("orders.failed"))
    created, again = await asyncio.gather(first, create_later(), return_exceptions=True)

    assert not isinstance(created, BaseException)
    assert isinstance(again, errors.TopicAlreadyExists)


async def test_validate_only_writes_nothing(session: MemorySession) -> None:
    world = World(session)

    await world.topics.create(NewTopic("orders"), validate_only=True)

    assert await session.children(paths.BROKER_TOPICS) == []
    assert await session.children(f"{paths.CONFIG}/topics") == []


@pytest.mark.parametrize(
    ("topic", "error", "words"),
    [
        (NewTopic(""), errors.InvalidTopicException, "empty"),
        (NewTopic(".."), errors.InvalidTopicException, r"\.\."),
        (NewTopic("a/b"), errors.InvalidTopicException, "other than"),
        (NewTopic("x" * 250), errors.InvalidTopicException, "249"),
        (NewTopic("taken"), errors.TopicAlreadyExists, "Topic 'taken' already exists"),
        (NewTopic("old.name"), errors.InvalidTopicException, "collides with existing topics: old_name"),
        (NewTopic("t", 0), errors.InvalidPartitions, "larger than 0"),
        (NewTopic("t", -2), errors.InvalidPartitions, "larger than 0"),
        (NewTopic("t", 2**31 - 1), errors.InvalidPartitions, "At most"),
        (NewTopic("t", 1, 0), errors.InvalidReplicationFactor, "larger than 0"),
        (NewTopic("t", 1, 4), errors.InvalidReplicationFactor, "4 larger than available brokers: 3"),
        (NewTopic("t", 1, assignments={0: [1]}), errors.InvalidRequest, "Both cannot be used"),
        (NewTopic("t", assignments={1: [1]}), errors.InvalidReplicaAssignment, "consecutive"),
        (NewTopic("t", assignments={0: [1], 1: [1, 2]}), errors.InvalidReplicaAssignment, "same number"),
        (NewTopic("t", assignments={0: [1, 1]}), errors.InvalidReplicaAssignment, "Duplicate"),
        (NewTopic("t", assignments={0: []}), errors.InvalidReplicaAssignment, "same number"),
        (NewTopic("t", assignments={0: [9]}), errors.InvalidReplicaAssignment, "Unknown broker.* 9"),
        (NewTopic("t", configs={"no.such": "1"}), errors.InvalidConfig, "no.such"),
        (NewTopic("t", configs={"retention.ms": "soon"}), errors.InvalidConfig, "retention.ms"),
        (NewTopic("t", configs={"retention.ms": None}), errors.InvalidConfig, "Null value"),
    ],
    ids=str,
)
async def test_invalid_topics_are_refused_with_kafkas_errors(
    session: MemorySession, topic: NewTopic, error: type[errors.KafkaError], words: str
) -> None:
    world = World(session)
    await world.topics.create(NewTopic("taken"))
    await world.topics.create(NewTopic("old_name"))

    with pytest.raises(error, match=words):
        await world.topics.create(topic)

    assert await session.children(paths.BROKER_TOPICS) == ["old_name", "taken"]


async def test_a_lost_reply_does_not_make_a_created_topic_look_like_another_ones(
    session: MemorySession,
) -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as shaky:
        await make_roots(shaky)
        world = World(shaky)
        create = shaky.create

        async def lose_reply(path: str, *rest: object, **named: object) -> str:
            if path == paths.topic("orders"):
                ensemble.lose_next_reply(shaky)
            return await create(path, *rest, **named)  # type: ignore[arg-type]

        shaky.create = lose_reply  # type: ignore[method-assign]

        created = await world.topics.create(NewTopic("orders"))

        assert (await world.assignment("orders")).topic_id == created.id


async def test_the_offsets_topic_waits_for_enough_brokers(session: MemorySession) -> None:
    world = World(
        session, zookeeper_connect="there:2181", offsets_topic_num_partitions="5",
        offsets_topic_replication_factor="5",
    )  # fmt: skip

    errors_of = await world.topics.auto_create([GROUP_METADATA_TOPIC])

    assert isinstance(errors_of[GROUP_METADATA_TOPIC], errors.InvalidReplicationFactor)
    assert await session.children(paths.BROKER_TOPICS) == []


async def test_the_offsets_topic_gets_its_replicas_when_enough_brokers_are_there(
    session: MemorySession,
) -> None:
    world = World(session, zookeeper_connect="there:2181", offsets_topic_num_partitions="5")

    errors_of = await world.topics.auto_create([GROUP_METADATA_TOPIC])

    node = await world.assignment(GROUP_METADATA_TOPIC)
    assert errors_of == {}
    assert (len(node.partitions), len(node.partitions[0])) == (5, 3)
    assert (await world.settings(GROUP_METADATA_TOPIC))["cleanup.policy"] == "compact"


async def test_a_broker_that_is_a_cluster_of_its_own_gives_the_offsets_topic_one_replica(
    session: MemorySession,
) -> None:
    world = World(session, offsets_topic_num_partitions="5")

    await world.topics.auto_create([GROUP_METADATA_TOPIC])

    assert len((await world.assignment(GROUP_METADATA_TOPIC)).partitions[0]) == 1


def test_topics_without_leaders_are_waited_for_together() -> None:
    async def create() -> tuple[float, dict[str, errors.KafkaError], int]:
        async with MemoryEnsemble().session() as session:
            await make_roots(session)
            world, loop = World(session), asyncio.get_running_loop()
            begun_s = loop.time()
            errors_of = await world.topics.auto_create([f"topic-{one}" for one in range(100)])
            return loop.time() - begun_s, errors_of, len(await session.children(paths.BROKER_TOPICS))

    took_s, errors_of, created = run_in_virtual_time(create())

    assert (errors_of, created) == ({}, 100)
    assert 2.0 <= took_s < 3.0


async def test_when_zookeeper_is_silent_one_topic_is_tried(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    async def silent(path: str, _: object = None) -> None:
        tried.append(path)
        raise OperationTimeout(path, "no answer within 18 s")

    monkeypatch.setattr(session, "exists", silent)

    errors_of = await World(session).topics.auto_create(["a", "b", "c"])

    assert {name: type(error) for name, error in errors_of.items()} == dict.fromkeys(
        "abc", errors.RequestTimedOut
    )
    assert tried == [paths.topic("a")]


async def test_partitions_are_added_and_the_old_ones_keep_their_replicas(session: MemorySession) -> None:
    world = World(session)
    await world.topics.create(NewTopic("orders", 2, 2))
    before = (await world.assignment("orders")).partitions

    await world.topics.add_partitions("orders", 5, None)

    after = (await world.assignment("orders")).partitions
    assert len(after) == 5
    assert {number: after[number] for number in before} == before
    assert all(len(set(replicas)) == 2 for replicas in after.values())


@pytest.mark.parametrize(
    ("count", "assignments", "error"),
    [
        (2, None, errors.InvalidPartitions),
        (1, None, errors.InvalidPartitions),
        (10**7, None, errors.InvalidPartitions),
        (4, [[1]], errors.InvalidReplicaAssignment),
        (3, [[1, 2]], errors.InvalidReplicaAssignment),
        (3, [[7]], errors.InvalidReplicaAssignment),
    ],
)
async def test_partitions_that_cannot_be_added_are_refused(
    session: MemorySession, count: int, assignments: list[list[int]] | None, error: type[errors.KafkaError]
) -> None:
    world = World(session)
    await world.topics.create(NewTopic("orders", 2, 1))

    with pytest.raises(error):
        await world.topics.add_partitions("orders", count, assignments)


@pytest.mark.parametrize("name", ["", "..", "a/b", "../../etc/passwd", "n\0ul", "x" * 250, "ü"])
async def test_an_illegal_topic_name_is_an_unknown_topic(session: MemorySession, name: str) -> None:
    topics = World(session).topics

    with pytest.raises(errors.UnknownTopicOrPartition):
        await topics.delete(name)
    with pytest.raises(errors.UnknownTopicOrPartition):
        await topics.add_partitions(name, 2, None)


async def test_an_unknown_topic_can_be_neither_enlarged_nor_deleted(session: MemorySession) -> None:
    world = World(session)

    with pytest.raises(errors.UnknownTopicOrPartition):
        await world.topics.add_partitions("ghost", 2, None)
    with pytest.raises(errors.UnknownTopicOrPartition):
        await world.topics.delete("ghost")


async def test_deleting_marks_the_topic_and_its_name_stays_taken_until_it_is_gone(
    session: MemorySession,
) -> None:
    world = World(session)
    await world.topics.create(NewTopic("orders"))

    await world.topics.delete("orders")
    await world.topics.delete("orders")
    await session.delete(paths.topic("orders"))

    with pytest.raises(errors.TopicAlreadyExists, match="marked for deletion"):
        await world.topics.create(NewTopic("orders"))
    assert not await world.topics.wait_until_gone("orders", 10)
    await session.delete(paths.deleted_topic("orders"))
    assert await world.topics.wait_until_gone("orders", 1_000)


async def test_a_controller_publishes_the_partitions_with_elected_leaders(session: MemorySession) -> None:
    world = World(session)
    for name in ("orders", "new", "deleted"):
        await world.topics.create(NewTopic(name, partitions=2))
    await session.create(paths.BROKER_TOPICS + "/not a name")
    for name in ("orders", "deleted"):
        await session.create(paths.partitions(name))
        for number in range(2):
            await session.create(paths.partition(name, number))
    await world.topics.delete("deleted")

    assert await world.topics.published() == {"orders": 2, "new": 0, "not a name": 0}


async def test_what_a_controller_publishes_is_unknown_without_zookeeper(
    session: MemorySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(session)

    async def silent(path: str) -> list[str]:
        raise OperationTimeout(path)

    monkeypatch.setattr(session, "children", silent)

    assert await world.topics.published() is None


async def test_waiting_for_deletions_leaves_no_watch(session: MemorySession) -> None:
    world = World(session)
    for number in range(3):
        name = f"orders-{number}"
        await world.topics.create(NewTopic(name))
        await world.topics.delete(name)
        waiting = asyncio.ensure_future(world.topics.wait_until_gone(name, 60_000))
        for _ in range(100):
            await asyncio.sleep(0)
        assert session.armed_watches == 1

        await session.delete(paths.deleted_topic(name))

        assert await waiting
        assert session.armed_watches == 0


async def test_deletion_can_be_disabled(session: MemorySession) -> None:
    world = World(session, delete_topic_enable="false")
    await world.topics.create(NewTopic("orders"))

    with pytest.raises(errors.TopicDeletionDisabled):
        await world.topics.delete("orders")


async def test_a_wait_ends_when_the_controller_publishes_a_live_leader(session: MemorySession) -> None:
    world = World(session)

    assert not await world.topics.wait_until_led("orders", 1, 10)
    world.tell("orders")
    assert await world.topics.wait_until_led("orders", 1, 10)


async def test_a_topic_whose_request_was_lost_is_answered_with_a_timeout() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        await make_roots(session)
        world = World(session)
        create = session.create

        async def lose_request(path: str, *rest: object, **named: object) -> str:
            if path == paths.topic("orders"):
                ensemble.lose_next_request(session)
            return await create(path, *rest, **named)  # type: ignore[arg-type]

        session.create = lose_request  # type: ignore[method-assign]

        with pytest.raises(errors.RequestTimedOut, match="did not store"):
            await world.topics.create(NewTopic("orders", 1, 1))

        session.create = create  # type: ignore[method-assign]
        await world.topics.create(NewTopic("orders", 1, 1))


class Yielding:
    """A session in memory that lets others go on before each operation, as the network does."""

    def __init__(self, session: MemorySession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._session, name)
        if name not in ("get", "exists", "create", "set", "multi", "children"):
            return found

        async def later(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            return await found(*arguments, **named)

        return later


@pytest.mark.parametrize("turns", range(8))
async def test_topics_that_are_created_twice_at_once_keep_the_settings_of_ours(turns: int) -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session, ensemble.session() as another:
        await make_roots(session)
        worlds = [World(Yielding(opened), seed) for seed, opened in enumerate((session, another))]  # type: ignore[arg-type]
        configs: dict[str, str | None] = {"flush.before.acknowledge": "true", "retention.ms": "5"}
        topic = NewTopic("orders", 1, 1, configs=configs)

        found = await asyncio.gather(
            *(world.topics.create(topic) for world in worlds), return_exceptions=True
        )

        assert sorted(type(outcome).__name__ for outcome in found) == ["CreatedTopic", "TopicAlreadyExists"]
        assert (await read_settings(session, "orders")).settings == configs
