"""Calls of a consumer that has not started, or has ended: errors, and no connection that stays open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.blocking import NotRunning
from ottla.client.settings import SettingError
from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
    ConsumerClosed,
    ConsumerStopped,
    PositionNotFound,
    SyncConsumer,
    TopicPartition,
)
from ottla.consumer.zookeeper import ZookeeperConsumerConfig, ZookeeperConsumerConnector
from ottla.consumer.zookeeper.testing import MemoryGroup
from peers.scripted_topic import A, Log, reader

MISSING = TopicPartition("t", 9)

CHOICES: dict[str, Callable[[Any], Any]] = {
    "subscribe": lambda consumer: consumer.subscribe("t"),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "assign": lambda consumer: consumer.assign([A]),
    "pause": lambda consumer: consumer.pause(),
    "resume": lambda consumer: consumer.resume(),
    "seek": lambda consumer: consumer.seek(A, 1),
}
REQUESTS: dict[str, Callable[[Any], Any]] = {
    "commit": lambda consumer: consumer.commit(),
    "commit offsets": lambda consumer: consumer.commit({A: 1}),
    "commit_nowait": lambda consumer: consumer.commit_nowait({A: 1}),
    "committed": lambda consumer: consumer.committed(A),
    "committed_offsets": lambda consumer: consumer.committed_offsets([A]),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "seek_to_timestamp": lambda consumer: consumer.seek_to_timestamp(1),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(),
    "position": lambda consumer: consumer.position(A),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([A]),
    "end_offsets": lambda consumer: consumer.end_offsets(),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({A: 1}),
    "partitions_for_topic": lambda consumer: consumer.partitions_for_topic("t"),
    "topics": lambda consumer: consumer.topics(),
    "getone": lambda consumer: consumer.getone(),
    "getmany": lambda consumer: consumer.getmany(),
    "fetch_arrow": lambda consumer: consumer.fetch_arrow(),
}


async def outcome(call: Callable[[Any], Any], consumer: Any) -> Any:
    result = call(consumer)
    return await result if hasattr(result, "__await__") else result


@pytest.fixture
async def broker() -> Any:
    async with ScriptedBroker() as broker:
        Log(broker).add(b"a")
        yield broker


@pytest.mark.parametrize("call", [*CHOICES, *REQUESTS])
async def test_a_consumer_that_was_stopped_raises_and_opens_no_connection(
    broker: ScriptedBroker, call: str
) -> None:
    consumer = Consumer("t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    consumer.unsubscribe()
    consumer.assign([A])
    async with consumer:
        await consumer.getone()
    connections = broker.connections

    with pytest.raises(ConsumerStopped):
        await outcome((CHOICES | REQUESTS)[call], consumer)

    assert broker.connections == connections


@pytest.mark.parametrize("call", REQUESTS)
async def test_a_consumer_that_was_not_started_raises_and_opens_no_connection(
    broker: ScriptedBroker, call: str
) -> None:
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
    consumer.assign([A])

    with pytest.raises(ConsumerClosed, match="async with"):
        await outcome(REQUESTS[call], consumer)

    assert broker.connections == 0


async def test_a_consumer_chooses_and_seeks_before_it_starts(broker: ScriptedBroker) -> None:
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers)
    for call in CHOICES.values():
        if call is not CHOICES["subscribe"]:
            await outcome(call, consumer)

    assert consumer.assignment() == {A}


async def test_a_consumer_that_was_stopped_does_not_start(broker: ScriptedBroker) -> None:
    consumer = Consumer("t", bootstrap_servers=broker.bootstrap_servers)
    await consumer.stop()

    with pytest.raises(ConsumerStopped):
        await consumer.start()

    assert broker.connections == 0


@pytest.mark.parametrize("call", [*CHOICES, *REQUESTS])
def test_a_synchronous_consumer_that_is_not_open_raises(call: str) -> None:
    with pytest.raises(NotRunning, match="not running"):
        (CHOICES | REQUESTS)[call](SyncConsumer("t", bootstrap_servers="127.0.0.1:9", group_id="g"))


@pytest.mark.parametrize("most", [0, -1])
async def test_a_call_for_no_records_raises(broker: ScriptedBroker, most: int) -> None:
    calls: list[Callable[[Consumer], Any]] = [
        lambda consumer: consumer.getmany(max_records=most),
        lambda consumer: consumer.fetch_arrow(max_records=most),
        lambda consumer: anext(consumer.batches(max_records=most)),
        lambda consumer: anext(consumer.arrow_batches(max_records=most)),
    ]
    async with reader(broker) as consumer:
        for call in calls:
            with pytest.raises(
                ValueError, match=f"max_records is at least 1, or None for the default, not {most}"
            ):
                await call(consumer)
        assert (await consumer.getone()).value == b"a"


@pytest.mark.parametrize("call", ["position", "seek_to_end"])
async def test_the_position_of_a_partition_that_does_not_exist_is_not_blamed_on_the_reset(
    broker: ScriptedBroker, call: str
) -> None:
    async with Consumer(
        bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", default_api_timeout_ms=200
    ) as consumer:
        consumer.assign([MISSING])
        with pytest.raises(PositionNotFound) as raised:
            await getattr(consumer, call)(MISSING)

    assert str(raised.value) == ("the position of t-9 was not found within 0.2 s: there is no partition t-9")


async def test_a_connector_without_streams_or_after_its_end_does_not_commit(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    connector = world.connector("me")
    with pytest.raises(ConsumerClosed, match="not open"):
        await connector.commit_offsets()
    async with connector:
        with pytest.raises(ConsumerClosed, match="no streams"):
            await connector.commit_offsets({A: 1})
    for offsets in (None, {A: 1}):
        with pytest.raises(ConsumerClosed, match="not open"):
            await connector.commit_offsets(offsets)


@pytest.fixture
async def world() -> Any:
    made = MemoryGroup()
    yield made
    made.admin.close()


def test_a_group_of_zookeeper_needs_a_name() -> None:
    makes: list[Callable[[], object]] = [
        lambda: ZookeeperConsumerConfig(zookeeper_connect="127.0.0.1:2181"),
        lambda: ZookeeperConsumerConfig.from_properties({"zookeeper.connect": "127.0.0.1:2181"}),
        lambda: ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:2181"),
    ]
    for make in makes:
        with pytest.raises(SettingError) as raised:
            make()
        assert str(raised.value) == "group_id is missing; name the group that shares the partitions"
