"""Offsets of topics that were deleted, and perhaps created again, while no coordinator had them loaded."""

import asyncio
from uuid import UUID

import pytest

from ottla.broker.cluster.metadata import KNOWN_WITHIN_MS, NO_ID
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.coordinators.internal_topic_log import TransactionalProducer
from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.groups.testing import (
    MINUTE_MS,
    PARTITIONS,
    TOPIC_0,
    FakeTopics,
    elect,
    leading,
    make,
    offset,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import ControlType, decode_records, end_transaction_marker
from ottla.protocol.topics import TopicPartition

FIRST, SECOND = UUID(int=1), UUID(int=2)
OTHER_0 = TopicPartition("other", 0)
NUMBER = partition_for("g", PARTITIONS)
TAIL_S = 0.1


def tombstones(store: MemoryStore) -> int:
    """How many records without a value the log of the group's partition has."""
    return sum(record.value is None for batch in store.batches[NUMBER] for record in decode_records(batch))


async def store_with(*topic_ids: UUID, topic: str = "topic") -> MemoryStore:
    """A log in which the group has committed 5, 6, ... in the partitions of a topic."""
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        for index, topic_id in enumerate(topic_ids):
            at = TopicPartition(topic, index)
            await groups.offsets.commit("g", {at: offset(5 + index, topic_id=topic_id)})
    return store


def topics_with(names: set[str] | None = None, **published: UUID) -> FakeTopics:
    topics = FakeTopics(is_told=False)
    topics.names = names
    topics.publish({"unrelated": UUID(int=9), **published})
    return topics


async def read_again(store: MemoryStore, topics: FakeTopics) -> dict[TopicPartition, object]:
    """Return what the next coordinator answers for all partitions."""
    async with leading(store, topics=topics) as groups:
        await asyncio.sleep(TAIL_S)
        return dict(groups.offsets.fetch("g")[1])


@in_virtual_time
async def test_offsets_of_a_topic_with_another_id_are_dropped_by_the_load_for_good() -> None:
    store = await store_with(FIRST, FIRST)

    assert await read_again(store, topics_with(topic=SECOND)) == {}

    assert tombstones(store) == 2
    assert await read_again(store, topics_with(topic=FIRST)) == {}


@in_virtual_time
async def test_offsets_of_a_topic_that_does_not_exist_are_dropped_with_and_without_an_id() -> None:
    store = await store_with(FIRST, NO_ID)

    assert await read_again(store, topics_with(names={"other"})) == {}

    assert tombstones(store) == 2


@pytest.mark.parametrize("committed", [FIRST, NO_ID])
@pytest.mark.parametrize("published", [FIRST, NO_ID])
def test_offsets_of_the_same_topic_stay(committed: UUID, published: UUID) -> None:
    @in_virtual_time
    async def story() -> None:
        store = await store_with(committed)

        read = await read_again(store, topics_with(topic=published))

        assert read == {TOPIC_0: offset(5, topic_id=committed)}
        assert tombstones(store) == 0

    story()


@in_virtual_time
async def test_an_offset_without_an_id_stays_whatever_id_its_topic_has() -> None:
    store = await store_with(NO_ID)

    assert await read_again(store, topics_with(topic=SECOND)) == {TOPIC_0: offset(5)}


@pytest.mark.parametrize("names", [None, {"topic"}])
def test_offsets_of_a_topic_that_is_not_published_stay_until_it_is(names: set[str] | None) -> None:
    """ZooKeeper is silent, or has the topic: it is being deleted, or not published yet."""

    @in_virtual_time
    async def story() -> None:
        topics, kept = topics_with(names), {TOPIC_0: offset(5, topic_id=FIRST)}
        store = await store_with(FIRST)
        async with leading(store, topics=topics) as groups:
            await asyncio.sleep(TAIL_S)
            assert groups.offsets.fetch("g")[1] == kept

            topics.publish({"other": FIRST})
            groups.topics_published(["other"], [])
            await asyncio.sleep(TAIL_S)
            assert groups.offsets.fetch("g")[1] == kept

            topics.publish({"topic": SECOND})
            assert groups.offsets.fetch("g")[1] == {}, "from the first moment on"
            assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: None}
            groups.topics_published(["topic"], [])
            await asyncio.sleep(TAIL_S)
            assert tombstones(store) == 1

    story()


@in_virtual_time
async def test_a_deletion_that_ends_after_the_load_is_noticed_when_offsets_expire() -> None:
    topics = topics_with({"topic"})
    store = await store_with(FIRST)
    async with leading(store, topics=topics, offsets_retention_minutes="1000") as groups:
        await asyncio.sleep(TAIL_S)
        topics.names = set()
        await asyncio.sleep(2 * MINUTE_MS / 1000)

        assert groups.offsets.fetch("g")[1] == {}
    assert tombstones(store) == 1


@in_virtual_time
async def test_a_load_waits_for_the_metadata_and_within_a_bound() -> None:
    for arrives in (True, False):
        topics = FakeTopics(is_told=False)
        topics.names = {"topic"}
        store = await store_with(FIRST)
        async with make(store, topics=topics) as groups:
            elect(groups)
            await asyncio.sleep(KNOWN_WITHIN_MS / 1000 - 1)
            assert groups.offsets.fetch("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if arrives:
                topics.publish({"topic": SECOND})
            await asyncio.sleep(2)
            expected = {} if arrives else {TOPIC_0: offset(5, topic_id=FIRST)}
            assert groups.offsets.fetch("g") == (ErrorCode.NONE, expected)


@in_virtual_time
async def test_partitions_deleted_during_a_load_lose_their_offsets_at_its_end() -> None:
    store = await store_with(NO_ID, NO_ID)
    store.read_gate.clear()
    async with make(store, topics=topics_with({"topic"}, topic=FIRST)) as groups:
        elect(groups)
        await asyncio.sleep(TAIL_S)
        groups.partitions_deleted([TOPIC_0, OTHER_0])
        store.read_gate.set()
        await asyncio.sleep(TAIL_S)

        assert groups.offsets.fetch("g")[1] == {TopicPartition("topic", 1): offset(6)}
    assert tombstones(store) == 1


@in_virtual_time
async def test_a_topic_replaced_unnoticed_loses_the_offsets_of_the_one_before() -> None:
    topics, store = topics_with(topic=FIRST), MemoryStore(PARTITIONS)
    async with leading(store, topics=topics) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(5, topic_id=FIRST), OTHER_0: offset(7)})
        topics.publish({"topic": SECOND, "other": FIRST})
        groups.topics_published(["topic", "other"], ["topic"])
        await asyncio.sleep(TAIL_S)

        assert groups.offsets.fetch("g")[1] == {OTHER_0: offset(7)}
        assert tombstones(store) == 1


@in_virtual_time
async def test_a_commit_for_the_new_topic_is_not_buried_by_the_tombstone_of_the_old_one() -> None:
    """The tombstone of an offset that a commit under way replaces would stand behind the commit."""
    topics, store = topics_with(topic=FIRST), MemoryStore(PARTITIONS)
    new: CommittedOffset = offset(1, topic_id=SECOND)
    async with leading(store, topics=topics) as groups, asyncio.TaskGroup() as tasks:
        await groups.offsets.commit("g", {TOPIC_0: offset(5, topic_id=FIRST)})
        topics.publish({"topic": SECOND})
        store.hold = True
        commit = tasks.create_task(groups.offsets.commit("g", {TOPIC_0: new}))
        await asyncio.sleep(0)
        groups.topics_published(["topic"], ["topic"])
        await asyncio.sleep(TAIL_S)
        store.release()
        assert await commit == {TOPIC_0: ErrorCode.NONE}

    assert tombstones(store) == 0
    assert await read_again(store, topics) == {TOPIC_0: new}


@in_virtual_time
async def test_a_transaction_that_commits_for_the_old_topic_brings_nothing_back() -> None:
    topics, store = topics_with(topic=FIRST), MemoryStore(PARTITIONS)
    async with leading(store, topics=topics) as groups:
        producer = TransactionalProducer(7, 2)
        await groups.offsets.commit("g", {TOPIC_0: offset(5, topic_id=FIRST)}, producer=producer)
    marker = end_transaction_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=2, coordinator_epoch=0, timestamp_ms=0
    )
    store.append_batch(NUMBER, marker)

    assert await read_again(store, topics_with(topic=SECOND)) == {}
    assert tombstones(store) == 1
