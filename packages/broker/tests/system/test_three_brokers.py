"""Three brokers on one ZooKeeper: the embedded coordinator, and a real server."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

from ottla.broker.api.testing import batch_of
from ottla.broker.cluster.topics import NewTopic
from ottla.broker.config import broker_config_from
from ottla.broker.peers import Address, Peer
from ottla.broker.peers.controller_requests import AlterPartition, Answers
from ottla.broker.replication.partition import Role
from ottla.broker.replication.replicas import NoFollowers
from ottla.broker.server.broker import Broker
from ottla.broker.testing import BrokerProcess
from ottla.protocol.errors import BrokerNotAvailable
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.apache_server import NoZooKeeper, RealZooKeeper, find_installation
from ottla.zookeeper.embedded import EmbeddedCoordinator, Limits
from ottla.zookeeper.session import NoNode
from ottla.zookeeper.testing import Background
from ottla.zookeeper.znodes import ConfigEntity, PartitionState, TopicAssignment

BOUND_S = 60.0
SESSION_MS = 1_500
T0 = TopicPartition("orders", 0)
_numbers = count(1)


@pytest.fixture(scope="module")
def embedded_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    limits = Limits(min_session_timeout_ms=1_000)
    coordinator = EmbeddedCoordinator(tmp_path_factory.mktemp("embedded"), limits=limits, tick_ms=100)
    with Background(coordinator) as server:
        yield server.value.connect_string


@pytest.fixture(scope="module")
def real_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    with Background(RealZooKeeper(tmp_path_factory.mktemp("real") / "zk", tick_ms=500)) as server:
        yield server.value.connect_string


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.java)])
def zookeeper(request: pytest.FixtureRequest) -> str:
    """A chroot of its own at each of the two in turn."""
    return f"{request.getfixturevalue(f'{request.param}_zookeeper')}/three-{next(_numbers)}"


def settings(zookeeper: str, broker_id: int, **more: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "broker.id": str(broker_id),
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "zookeeper.connection.timeout.ms": "30000",
        "controlled.shutdown.enable": "false",
        **dotted,
    }


class Cluster:
    """Brokers of this process by id; the first one to start is the controller."""

    def __init__(self, zookeeper: str, directory: Path) -> None:
        self.zookeeper = zookeeper
        self.directory = directory
        self.brokers: dict[int, Broker] = {}
        self._stacks: dict[int, AsyncExitStack] = {}

    async def start(self, broker_id: int, **more: str) -> Broker:
        directory = str(self.directory / str(broker_id))
        plain = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory}
        stack = self._stacks[broker_id] = AsyncExitStack()
        config = broker_config_from({**plain, **settings(self.zookeeper, broker_id, **more)})
        broker = self.brokers[broker_id] = await stack.enter_async_context(Broker(config))
        return broker

    async def start_all(self, *, copies: bool = True, **more: str) -> None:
        """Start three brokers; without `copies` they leave their logs as they are where they follow."""
        for broker_id in (1, 2, 3):
            broker = await self.start(broker_id, **more)
            if not copies:
                broker.services.replicas._followers = NoFollowers()

    async def stop(self, broker_id: int) -> None:
        """Stop a broker without moving its leaderships first."""
        del self.brokers[broker_id]
        await self._stacks.pop(broker_id).aclose()

    async def close(self) -> None:
        for broker_id in reversed(list(self.brokers)):
            await self.stop(broker_id)

    @property
    def any(self) -> Broker:
        return next(iter(self.brokers.values()))

    async def state(self, partition: TopicPartition) -> PartitionState | None:
        try:
            data, _ = await self.any.services.zookeeper.get(paths.partition_state(*partition))
        except NoNode:
            return None
        return PartitionState.decode(*partition, data)

    async def create(self, topic: str, partitions: dict[int, tuple[int, ...]], **topic_settings: str) -> None:
        """Create a topic as CreateTopics does, without a check."""
        session = self.any.services.zookeeper
        dotted = {name.replace("_", "."): value for name, value in topic_settings.items()}
        config = ConfigEntity(f"topics/{topic}", dotted)
        await session.create(config.path, config.encode(), make_parents=True)
        node = TopicAssignment(topic, partitions, uuid.uuid4())
        await session.create(node.path, node.encode())

    async def until_led(self, partition: TopicPartition, leader: int) -> None:
        for broker in self.brokers.values():
            metadata = broker.services.metadata
            await until(lambda metadata=metadata: _is(metadata.leader_of(partition) == leader))  # type: ignore[misc]


async def _is(value: bool) -> bool:
    return value


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition of several brokers holds, for which no event exists."""
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
async def cluster(zookeeper: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(zookeeper, tmp_path)
    try:
        yield cluster
    finally:
        await cluster.close()


# ---- settings


async def described(broker: Broker, topic: str) -> dict[str, str | None]:
    """Ask a broker, over a connection, for the settings of a topic."""
    resource = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
    connection = Peer(lambda: Address("127.0.0.1", broker.port), "test", int(BOUND_S * 1000))
    try:
        request = DescribeConfigsRequest(resources=[resource])
        [result] = (await connection.send(request, DescribeConfigsResponse)).results
    finally:
        await connection.close()
    assert not result.error_code, result.error_message
    return {entry.name: entry.value for entry in result.configs}


async def test_every_broker_describes_a_topic_alike(cluster: Cluster) -> None:
    await cluster.start_all()
    topics = cluster.brokers[2].services.topics
    for retention in ("77", "88"):
        await topics.create(NewTopic("orders", assignments={0: [2]}, configs={"retention.ms": retention}))
        await cluster.until_led(T0, 2)

        values = [await described(broker, "orders") for broker in cluster.brokers.values()]

        assert [one["retention.ms"] for one in values] == [retention] * 3
        assert values[0] == values[1] == values[2]
        await topics.delete("orders")
        for broker in cluster.brokers.values():
            assert await broker.services.topics.wait_until_gone("orders", BOUND_S * 1000)


# ---- unclean elections


async def with_one_in_sync(cluster: Cluster, *, default: str, topic: str) -> None:
    """A partition on 2 and 3 of which 3, which copies nothing, has left the ISR; then 2 stops.

    `default` and `topic` say whether the brokers and the topic allow unclean elections.
    """
    lag_ms = {"replica_lag_time_max_ms": "500"}
    await cluster.start_all(copies=False, unclean_leader_election_enable=default, **lag_ms)
    await cluster.create("orders", {0: (2, 3)}, unclean_leader_election_enable=topic)
    await cluster.until_led(T0, 2)
    cluster.brokers[2].services.replicas.leader(T0).append(batch_of(b"x"), now_ms=0)

    async def shrunk() -> bool:
        state = await cluster.state(T0)
        return state is not None and state.isr == (2,)

    await until(shrunk)
    await cluster.stop(2)


async def has_no_leader(cluster: Cluster) -> None:
    """Wait until the controller has noticed that 2 is gone; no election followed."""
    await until(lambda: _is(not cluster.brokers[1].services.metadata.is_alive(2)))
    state = await cluster.state(T0)
    assert state is not None
    assert (state.leader, state.isr) == (-1, (2,))


async def test_a_topic_created_without_unclean_elections_gets_none_although_they_are_the_default(
    cluster: Cluster,
) -> None:
    await with_one_in_sync(cluster, default="true", topic="false")

    await has_no_leader(cluster)


async def test_a_topic_created_with_unclean_elections_gets_one_although_they_are_not_the_default(
    cluster: Cluster,
) -> None:
    await with_one_in_sync(cluster, default="false", topic="true")

    await cluster.until_led(T0, 3)


async def test_allowing_unclean_elections_through_any_broker_elects(cluster: Cluster) -> None:
    await with_one_in_sync(cluster, default="false", topic="false")
    await has_no_leader(cluster)

    await cluster.brokers[3].services.configs.alter_topic(
        "orders", lambda _: {"unclean.leader.election.enable": "true"}
    )

    await cluster.until_led(T0, 3)


# ---- in-sync replicas


class LosesReplies:
    """Between a leader and the controller: requests arrive, answers do not, while `losing`."""

    def __init__(self, leader: Broker) -> None:
        self.losing = False
        self._ask = leader.parts.active_controller.ask
        leader.parts.alter_partition_requests._ask = self.ask

    async def ask(self, event: AlterPartition) -> Answers:
        answers = await self._ask(event)
        if self.losing:
            raise BrokerNotAvailable("The answer is lost.")
        return answers


async def test_after_a_lost_reply_no_record_is_acknowledged_without_a_member_of_the_isr(
    cluster: Cluster,
) -> None:
    await cluster.start_all(copies=False, replica_lag_time_max_ms="1000")
    await cluster.create("orders", {0: (2, 3)})
    await cluster.until_led(T0, 2)
    leader = cluster.brokers[2]
    replies, partition = LosesReplies(leader), leader.services.replicas.leader(T0)
    now_ms = leader.environment.clock.now_ms
    partition.append(batch_of(b"x"), now_ms=now_ms())
    async with asyncio.timeout(BOUND_S):
        await partition.replicated(1)  # 3 has left the ISR, because it copies nothing
    replies.losing = True

    partition.fetched(3, 1, 0, now_ms())  # as if it did
    await until(lambda: _isr_is(cluster, 2, 3))
    partition.append(batch_of(b"y"), now_ms=now_ms())

    async def acknowledged() -> set[int]:
        await partition.replicated(2)
        state = await cluster.state(T0)
        assert state is not None
        return set(state.isr)

    waiting = asyncio.ensure_future(acknowledged())
    await until(lambda: _is(partition.core.isr == {2, 3} or waiting.done()))
    replies.losing = False
    async with asyncio.timeout(BOUND_S):
        assert await waiting == {2}, "acknowledged while 3 was in the ISR without the record"


async def _isr_is(cluster: Cluster, *members: int) -> bool:
    state = await cluster.state(T0)
    return state is not None and set(state.isr) == set(members)


async def test_a_leader_that_lost_a_reply_reads_the_isr_from_the_next_controller(cluster: Cluster) -> None:
    await cluster.start_all(copies=False, replica_lag_time_max_ms="1000")
    await cluster.create("orders", {0: (2, 3)})
    await cluster.until_led(T0, 2)
    replies = LosesReplies(cluster.brokers[2])
    partition = cluster.brokers[2].services.replicas.leader(T0)
    replies.losing = True
    partition.append(batch_of(b"x"), now_ms=0)
    await until(lambda: _isr_is(cluster, 2))

    await cluster.stop(1)

    async with asyncio.timeout(BOUND_S):
        await partition.replicated(1)
    assert partition.core.isr == {2}
    assert partition.core.role is Role.LEADER


# ---- what a controller survives


async def test_an_unreadable_state_is_named_once_and_the_next_controller_serves_the_rest(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start_all()
    await cluster.create("orders", {0: (3, 2), 1: (3, 2)})
    await cluster.until_led(T0, 3)
    await cluster.any.services.zookeeper.set(paths.partition_state(*T0), b"{nonsense")
    caplog.clear()

    await cluster.stop(1)
    await cluster.stop(3)

    await cluster.until_led(TopicPartition("orders", 1), 2)
    await cluster.brokers[2].services.topics.create(NewTopic("later", 1, 1))
    await cluster.until_led(TopicPartition("later", 0), 2)
    of_the_path = [one for one in caplog.records if paths.partition_state(*T0) in str(one.__dict__)]
    assert 1 <= len(of_the_path) <= 2  # the second time by the second controller
    known = cluster.brokers[2].services.metadata.partition(T0)
    assert known is not None
    assert known.leader == -1


async def test_a_controller_that_fails_is_elected_again(cluster: Cluster) -> None:
    await cluster.start_all()
    await cluster.create("orders", {0: (1, 2), 1: (2, 1)})
    await cluster.until_led(TopicPartition("orders", 1), 2)
    node = TopicAssignment("orders", {0: (1, 2)}, cluster.any.services.metadata.topic_id("orders"))
    await cluster.any.services.zookeeper.set(node.path, node.encode())
    controller = cluster.brokers[1].services.controller
    await until(lambda: _is(len(controller.context.topics["orders"].partitions) == 1))  # type: ignore[union-attr]

    controller.balance_leaders(0.0)

    await cluster.brokers[3].services.topics.create(NewTopic("later", assignments={0: [3]}))
    await cluster.until_led(TopicPartition("later", 0), 3)


# ---- brokers that are away


def process(cluster: Cluster, broker_id: int) -> BrokerProcess:
    directory = cluster.directory / f"process-{broker_id}"
    return BrokerProcess(directory, settings(cluster.zookeeper, broker_id))


async def topics_of(port: int) -> set[str | None]:
    """Ask the broker at a port which topics it knows."""
    connection = Peer(lambda: Address("127.0.0.1", port), "test", int(BOUND_S * 1000))
    try:
        response = await connection.send(MetadataRequest(topics=None), MetadataResponse)
    except OSError:
        return {"not asked"}
    finally:
        await connection.close()
    return {topic.name for topic in response.topics}


async def test_a_broker_that_slept_through_a_deletion_forgets_the_topic(cluster: Cluster) -> None:
    await cluster.start(1)
    with process(cluster, 2) as sleeper:
        for topic in ("orders", "stays"):
            await cluster.create(topic, {0: (1,)})
            await cluster.until_led(TopicPartition(topic, 0), 1)
        awake = cluster.brokers[1].services
        await until(lambda: _knows(sleeper, {"orders", "stays"}))
        sleeper.pause()
        await until(lambda: _is(not awake.metadata.is_alive(2)))
        await awake.topics.delete("orders")
        assert await awake.topics.wait_until_gone("orders", BOUND_S * 1000)

        sleeper.resume()

        await until(lambda: _is(awake.metadata.is_alive(2)))
        await until(lambda: _knows(sleeper, {"stays"}))


async def _knows(broker: BrokerProcess, topics: set[str]) -> bool:
    return await topics_of(broker.port) == topics


async def test_a_broker_that_a_dead_controller_did_not_tell_of_a_deletion_forgets_the_topic(
    cluster: Cluster,
) -> None:
    await cluster.start_all()
    for topic in ("orders", "stays"):
        await cluster.create(topic, {0: (1,)})
        await cluster.until_led(TopicPartition(topic, 0), 1)
    metadata = cluster.brokers[3].services.metadata
    update = metadata.update
    metadata.update = lambda request: []  # type: ignore[method-assign]
    await cluster.brokers[2].services.topics.delete("orders")
    assert await cluster.brokers[2].services.topics.wait_until_gone("orders", BOUND_S * 1000)
    assert "orders" in metadata
    metadata.update = update  # type: ignore[method-assign]

    await cluster.any.services.zookeeper.delete(paths.CONTROLLER)

    await until(lambda: _is("orders" not in metadata))
    assert "stays" in metadata


async def test_the_death_of_the_controller_costs_no_traceback_and_few_warnings(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    dying = process(cluster, 1).start()
    try:
        await cluster.start(2)
        await cluster.start(3)
        replicas: tuple[tuple[int, ...], ...] = ((1, 2), (2, 1), (3, 2))
        partitions = {number: replicas[number % 3] for number in range(60)}
        await cluster.create("orders", partitions)
        for number in range(3):
            await cluster.until_led(TopicPartition("orders", number), partitions[number][0])
        caplog.clear()

        os.kill(dying.pid, signal.SIGKILL)

        for number in (0, 57):
            await cluster.until_led(TopicPartition("orders", number), 2)
    finally:
        dying.kill()

    loud = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert not [one for one in loud if one.exc_info]
    assert len(loud) <= 5, [one.getMessage() for one in loud]


def _occupied(cluster: Cluster, broker_id: int, partition: TopicPartition) -> None:
    """Put a file where the partition's directory would be."""
    (cluster.directory / str(broker_id) / f"{partition.topic}-{partition.partition}").write_text("in the way")


async def test_another_replica_leads_when_the_leader_cannot_make_its_log(cluster: Cluster) -> None:
    await cluster.start_all()
    _occupied(cluster, 2, T0)

    await cluster.create(T0.topic, {0: (2, 3)})

    await cluster.until_led(T0, 3)
    state = await cluster.state(T0)
    assert state is not None
    assert (state.leader, list(state.isr)) == (3, [3])


async def test_a_follower_that_cannot_make_its_log_leaves_the_isr(cluster: Cluster) -> None:
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    _occupied(cluster, 2, T0)

    await cluster.create(T0.topic, {0: (1, 2)})

    await until(lambda: _isr_is(cluster, 1))


async def test_a_partition_whose_only_replica_cannot_be_made_is_there_without_leader(
    cluster: Cluster,
) -> None:
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    _occupied(cluster, 2, T0)

    new = NewTopic(name=T0.topic, assignments={0: [2]})
    await cluster.brokers[1].services.topics.create(new, validate_only=False)

    async def is_offline() -> bool:
        seen = [broker.services.metadata.partition(T0) for broker in cluster.brokers.values()]
        return all(one is not None and one.leader < 0 and 2 in one.offline_replicas for one in seen)

    await until(is_offline)
    (cluster.directory / "2" / "orders-0").unlink()
    await cluster.stop(2)
    await cluster.start(2)
    await cluster.until_led(T0, 2)
