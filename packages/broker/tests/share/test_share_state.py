"""Records of share partitions' state, and the coordinator that keeps them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from ottla.broker.api.group_testing import BROKER, TopicsStub, tell
from ottla.broker.cluster.metadata import NO_LEADER, MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.coordinator_partitions import KeyValue
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.coordinators.testing import LoggedWarnings, MemoryStore, in_virtual_time
from ottla.broker.metrics import Gauge, Metrics
from ottla.broker.peers.client import Peer
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.runtime.environment import Environment
from ottla.broker.share.coordinator import ShareCoordinator, WrittenState
from ottla.broker.share.in_flight import StateBatch
from ottla.broker.share.persister import SharePersister
from ottla.broker.share.state import (
    SharePartitionKey,
    ShareState,
    ShareStates,
    ShareUpdate,
    StateRecord,
    StateRecordCodec,
    merged,
)
from ottla.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidRequest,
    KafkaError,
    NotCoordinator,
    UnknownTopicOrPartition,
)
from ottla.protocol.topics import SHARE_GROUP_STATE_TOPIC, TopicPartition

TOPIC_ID = UUID(int=7)
KEY = SharePartitionKey("group", TOPIC_ID, 0)
AVAILABLE, ACKED, ARCHIVED = 0, 2, 4


# ---- records


@pytest.mark.parametrize(
    "record",
    [
        StateRecord(KEY, None),
        StateRecord(
            KEY,
            ShareState(
                state_epoch=3, start_offset=10, leader_epoch=5, delivery_complete_count=2, snapshot_epoch=4,
                created_ms=1, written_ms=2,
                batches=(StateBatch(10, 11, ACKED, 1), StateBatch(12, 12, ARCHIVED, 5)),
            ),
        ),
        StateRecord(
            KEY,
            ShareUpdate(
                snapshot_epoch=4, leader_epoch=5, start_offset=11, delivery_complete_count=1,
                batches=(StateBatch(11, 11, ACKED, 1),),
            ),
        ),
    ],
)  # fmt: skip
def test_records_are_read_as_they_were_written(record: StateRecord) -> None:
    encoded = StateRecordCodec.encode(record)

    assert StateRecordCodec.decode(encoded.key, encoded.value) == record


def test_a_key_is_found_by_the_text_that_kafka_hashes() -> None:
    key = SharePartitionKey("g", UUID("6c3a1f0e-3b0e-4b9e-8f2c-0a1b2c3d4e5f"), 3)

    assert key.text == "g:bDofDjsOS56PLAobLD1OXw:3"


def test_an_update_without_its_snapshot_is_skipped() -> None:
    states = ShareStates(0)
    update = ShareUpdate(snapshot_epoch=1, leader_epoch=2, start_offset=3, delivery_complete_count=0)

    states.replay(StateRecord(KEY, update), 0, None)

    assert states.states == {}


def test_an_update_of_minus_one_keeps_the_start_offset_and_the_leader_epoch() -> None:
    state = ShareState(state_epoch=1, start_offset=10, leader_epoch=4)
    update = ShareUpdate(snapshot_epoch=0, leader_epoch=-1, start_offset=-1, delivery_complete_count=0)

    after = merged(state, update)

    assert (after.start_offset, after.leader_epoch) == (10, 4)


# ---- the coordinator


@dataclass
class Running:
    coordinator: ShareCoordinator
    store: MemoryStore
    pruned: list[tuple[int, int]]
    metrics: Metrics
    topics: dict[UUID, int] = field(default_factory=lambda: {TOPIC_ID: 4})


@asynccontextmanager
async def running(
    store: MemoryStore | None = None,
    updates_per_snapshot: int = 500,
    clock: LoopClock | None = None,
    ready: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[Running]:
    environment = Environment(clock or LoopClock())
    store = store or MemoryStore(topic=SHARE_GROUP_STATE_TOPIC)
    config = BrokerConfig(share_coordinator_snapshot_update_records_per_snapshot=updates_per_snapshot)
    pruned: list[tuple[int, int]] = []
    topics, metrics = {TOPIC_ID: 4}, Metrics()
    async with BackgroundTasks(Metrics(), environment.clock) as tasks:
        coordinator = ShareCoordinator(
            config=config, environment=environment, store=store, metrics=metrics, tasks=tasks,
            partition_count=lambda topic_id: topics.get(topic_id, 0),
            delete_before=lambda partition, position: pruned.append((partition, position)), ready=ready,
        )  # fmt: skip
        coordinator.start(
            (TopicPartition(SHARE_GROUP_STATE_TOPIC, number), store.leader_epochs[number])
            for number in store.led
        )
        yield Running(coordinator, store, pruned, metrics, topics)


def written(
    *batches: StateBatch, start: int = 0, leader_epoch: int = 0, state_epoch: int = 1, complete: int = 0
) -> WrittenState:
    return WrittenState(state_epoch, leader_epoch, start, complete, batches)


async def read_again(store: MemoryStore, leader_epoch: int = 0) -> ShareState:
    """Read the state as the next coordinator has it."""
    async with running(store) as after:
        return await until_loaded(after, leader_epoch)


async def until_loaded(after: Running, leader_epoch: int) -> ShareState:
    async with asyncio.timeout(60):
        while True:
            try:
                return await after.coordinator.read(KEY, leader_epoch)
            except CoordinatorLoadInProgress:
                await asyncio.sleep(0.01)


@in_virtual_time
async def test_what_a_leader_writes_is_what_the_next_one_reads() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, -1)
        assert (await now.coordinator.read(KEY, 0)).start_offset == -1
        await now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1), StateBatch(5, 9, AVAILABLE, 1)))
        await now.coordinator.write(KEY, written(StateBatch(5, 9, ACKED, 2), start=5, complete=5))
        state = await now.coordinator.read(KEY, 0)

    assert (state.start_offset, state.delivery_complete_count) == (5, 5)
    assert state.batches == (StateBatch(5, 9, ACKED, 2),)
    assert await read_again(now.store) == state


@in_virtual_time
async def test_a_snapshot_replaces_updates_after_their_number() -> None:
    async with running(updates_per_snapshot=3) as now:
        await now.coordinator.initialize(KEY, 1, 0)
        for offset in range(10):
            await now.coordinator.write(KEY, written(StateBatch(offset, offset, ACKED, 1)))
        state = await now.coordinator.read(KEY, 0)
        now.coordinator.prune()

    assert state.snapshot_epoch == 2
    assert state.batches == (StateBatch(0, 9, ACKED, 1),)
    assert await read_again(now.store) == state
    assert [position for _, position in now.pruned] == [8]


def shown_as_pruned(now: Running) -> list[tuple[str, float]]:
    """Return the positions that meters show, by partition."""
    return [
        (dict(name.tags)["partition"], metric.value)
        for name, metric in now.metrics
        if name.name == "last-pruned-offset" and isinstance(metric, Gauge)
    ]


@in_virtual_time
async def test_a_meter_has_the_position_that_was_pruned_last_until_another_broker_coordinates() -> None:
    async with running(updates_per_snapshot=3) as now:
        await now.coordinator.initialize(KEY, 1, 0)
        assert shown_as_pruned(now) == []
        for offset in range(10):
            await now.coordinator.write(KEY, written(StateBatch(offset, offset, ACKED, 1)))
        now.coordinator.prune()
        now.coordinator.prune()

        ((partition, position),) = now.pruned[-1:]
        assert shown_as_pruned(now) == [(str(partition), position)]
        resigned = [
            (TopicPartition(SHARE_GROUP_STATE_TOPIC, number), now.store.leader_epochs[number] + 1)
            for number in now.store.led
        ]
        now.coordinator.leadership_changed([], resigned)
        assert shown_as_pruned(now) == []


@in_virtual_time
async def test_an_older_leader_is_fenced() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.read(KEY, 5)

        with pytest.raises(FencedLeaderEpoch):
            await now.coordinator.write(KEY, written(leader_epoch=4))
        with pytest.raises(FencedLeaderEpoch):
            await now.coordinator.read(KEY, 4)
        await now.coordinator.write(KEY, written(leader_epoch=5))
        await now.coordinator.initialize(KEY, 2, 0)
        with pytest.raises(FencedLeaderEpoch):
            await now.coordinator.read(KEY, 4)


@in_virtual_time
async def test_a_state_that_began_again_fences_the_writes_of_the_one_before() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.read(KEY, 0)
        await now.coordinator.initialize(KEY, 2, 50)

        with pytest.raises(FencedStateEpoch):
            await now.coordinator.write(KEY, written(state_epoch=1))
        with pytest.raises(FencedStateEpoch):
            await now.coordinator.initialize(KEY, 1, 0)
        assert now.coordinator.summary(KEY).start_offset == 50


@in_virtual_time
async def test_what_was_never_initialized_is_not_read_and_not_written() -> None:
    async with running() as now:
        with pytest.raises(InvalidRequest):
            await now.coordinator.read(KEY, 0)
        with pytest.raises(InvalidRequest):
            await now.coordinator.write(KEY, written())
        await now.coordinator.delete(KEY)
        assert now.coordinator.summary(KEY).start_offset == -1
        with pytest.raises(UnknownTopicOrPartition):
            await now.coordinator.initialize(KEY._replace(partition=4), 1, 0)
        with pytest.raises(UnknownTopicOrPartition):
            await now.coordinator.initialize(KEY._replace(topic_id=UUID(int=0)), 1, 0)


@in_virtual_time
async def test_a_deleted_state_is_gone_after_a_load_too() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.delete(KEY)
        assert now.coordinator.summary(KEY).start_offset == -1

    with pytest.raises(InvalidRequest):
        await read_again(now.store)


@in_virtual_time
async def test_writes_of_one_share_partition_follow_each_other() -> None:
    async with running(updates_per_snapshot=0) as now:
        await now.coordinator.initialize(KEY, 1, 0)
        now.store.hold = True
        async with asyncio.TaskGroup() as group:
            group.create_task(now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1))))
            group.create_task(now.coordinator.write(KEY, written(StateBatch(5, 9, ACKED, 1))))
            await asyncio.sleep(0.01)
            now.store.hold = False
            now.store.release()
        state = await now.coordinator.read(KEY, 0)

    assert state.batches == (StateBatch(0, 9, ACKED, 1),)
    assert await read_again(now.store) == state


@in_virtual_time
async def test_a_coordinator_that_is_one_no_longer_says_so() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        now.coordinator.leadership_changed(
            [], [(TopicPartition(SHARE_GROUP_STATE_TOPIC, number), 1) for number in range(4)]
        )

        with pytest.raises(NotCoordinator):
            await now.coordinator.read(KEY, 0)


@in_virtual_time
async def test_a_coordinator_that_starts_again_serves_once_it_has_the_metadata() -> None:
    async with running() as before:
        await before.coordinator.initialize(KEY, 1, 0)

    async def metadata_arrived() -> None:
        await asyncio.sleep(5)
        after.topics[TOPIC_ID] = 4

    async with running(before.store, ready=metadata_arrived) as after:
        after.topics.clear()
        await asyncio.sleep(4)
        with pytest.raises(CoordinatorLoadInProgress):
            await after.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1)))

        await asyncio.sleep(2)
        await after.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1)))


@in_virtual_time
async def test_a_leader_waits_for_a_coordinator_that_is_elected_after_a_session() -> None:
    metadata = MetadataCache(BROKER)
    async with running() as now, asyncio.TaskGroup() as tasks:
        persister = SharePersister(
            metadata=metadata, topics=TopicsStub(metadata), here=now.coordinator, connect=no_other
        )
        tell(metadata, {SHARE_GROUP_STATE_TOPIC: 4}, leader=NO_LEADER)
        begun = tasks.create_task(persister.initialize(KEY, 1, 0))
        await asyncio.sleep(20)
        assert not begun.done()

        tell(metadata, {SHARE_GROUP_STATE_TOPIC: 4})
        await begun

        assert now.coordinator.summary(KEY).state_epoch == 1


@in_virtual_time
async def test_a_leader_gives_up_a_coordinator_that_nobody_elects() -> None:
    metadata = MetadataCache(BROKER)
    tell(metadata, {SHARE_GROUP_STATE_TOPIC: 4}, leader=NO_LEADER)
    async with running() as now:
        persister = SharePersister(
            metadata=metadata, topics=TopicsStub(metadata), here=now.coordinator, connect=no_other
        )
        async with asyncio.timeout(40):
            with pytest.raises(CoordinatorNotAvailable):
                await persister.initialize(KEY, 1, 0)
        async with asyncio.timeout(2):  # somebody waits for this one
            with pytest.raises(CoordinatorNotAvailable):
                await persister.summary(KEY)


def no_other(broker_id: int) -> Peer:
    raise AssertionError(broker_id)


@in_virtual_time
async def test_damaged_records_are_skipped_and_the_others_loaded() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1)))
        state = await now.coordinator.read(KEY, 0)
    good = StateRecordCodec.encode(StateRecord(KEY, state))
    assert good.value is not None
    bad: Iterable[tuple[bytes, bytes | None]] = [
        (b"\x00\x09abc", b""), (b"", b"x"), (good.key, good.value[:9]), (good.key[:5], good.value),
        (good.key, b"\x00\x07" + good.value[2:]),
    ]  # fmt: skip
    for number in range(4):
        for key, value in bad:
            now.store.append_batch(number, build_batch([KeyValue(key, value)], 0))

    assert await read_again(now.store) == state


@in_virtual_time
async def test_of_thousands_of_damaged_records_two_lines_tell_and_the_others_are_loaded() -> None:
    chance = random.Random(11)
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1)))
        state = await now.coordinator.read(KEY, 0)
    update = ShareUpdate(snapshot_epoch=0, leader_epoch=0, start_offset=5, delivery_complete_count=0)
    for number in range(2_000):
        key = SharePartitionKey("damaged", TOPIC_ID, number % 7)
        record = StateRecordCodec.encode(StateRecord(key, state if chance.random() < 0.5 else update))
        assert record.value is not None
        value = bytearray(record.value)
        for _ in range(chance.randint(1, 4)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        cut = chance.choice([len(value), len(value), chance.randrange(len(value))])
        batch = build_batch([KeyValue(record.key, bytes(value[:cut]))], 0)
        now.store.append_batch(number % len(now.store.batches), batch)

    with LoggedWarnings() as logged:
        assert await read_again(now.store) == state

    assert 1 <= len(logged.seen) <= 2 * len(now.store.batches)


@in_virtual_time
async def test_a_state_that_does_not_change_is_written_again_so_that_the_log_can_go() -> None:
    clock = LoopClock()
    async with running(clock=clock) as now:
        await now.coordinator.initialize(KEY, 1, 0)
        await now.coordinator.write_cold_snapshots()
        assert now.coordinator.summary(KEY).snapshot_epoch == 0
        await asyncio.sleep(301)
        await now.coordinator.write_cold_snapshots()

        assert now.coordinator.summary(KEY).snapshot_epoch == 1
        now.coordinator.prune()
    assert [position for _, position in now.pruned] == [1]


@in_virtual_time
async def test_the_state_of_a_deleted_topic_goes_after_it_was_missing_twice() -> None:
    async with running() as now:
        await now.coordinator.initialize(KEY, 1, 0)
        now.topics.clear()
        await now.coordinator.remove_states_of_deleted_topics()
        now.topics[TOPIC_ID] = 4
        assert now.coordinator.summary(KEY).state_epoch == 1

        now.topics.clear()
        await now.coordinator.remove_states_of_deleted_topics()
        await now.coordinator.remove_states_of_deleted_topics()
        now.topics[TOPIC_ID] = 4
        assert now.coordinator.summary(KEY).state_epoch == 0


@in_virtual_time
async def test_a_write_waits_for_the_end_of_a_state_whose_topic_is_known_again() -> None:
    async with running() as now, asyncio.TaskGroup() as tasks:
        await now.coordinator.initialize(KEY, 1, 0)
        now.topics.clear()
        await now.coordinator.remove_states_of_deleted_topics()
        now.store.hold = True
        tasks.create_task(now.coordinator.remove_states_of_deleted_topics())
        await asyncio.sleep(0.1)
        now.topics[TOPIC_ID] = 4
        late = tasks.create_task(refusal(now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1)))))
        await asyncio.sleep(0.1)

        now.store.hold = False
        now.store.release()

        assert isinstance(await late, InvalidRequest), "it would be lost with the state"


@in_virtual_time
async def test_a_state_stays_whose_topic_is_known_again_before_its_turn_comes() -> None:
    async with running() as now, asyncio.TaskGroup() as tasks:
        await now.coordinator.initialize(KEY, 1, 0)
        now.store.hold = True
        writing = tasks.create_task(now.coordinator.write(KEY, written(StateBatch(0, 4, ACKED, 1))))
        await asyncio.sleep(0.1)
        now.topics.clear()
        await now.coordinator.remove_states_of_deleted_topics()
        removing = tasks.create_task(now.coordinator.remove_states_of_deleted_topics())
        await asyncio.sleep(0.1)
        now.topics[TOPIC_ID] = 4

        now.store.hold = False
        now.store.release()
        await writing
        await removing

        assert now.coordinator.summary(KEY).batches == (StateBatch(0, 4, ACKED, 1),)


async def refusal(request: Awaitable[None]) -> KafkaError | None:
    """Return the error of a request, None for one that succeeds."""
    try:
        await request
    except KafkaError as error:
        return error
    return None
