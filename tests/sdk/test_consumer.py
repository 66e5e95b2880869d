"""The consumer against clusters: reading, places, errors, groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from ottla.admin import Admin
from ottla.consumer import (
    Consumer,
    ConsumerRecord,
    NoOffset,
    NotAssigned,
    OffsetOutOfRange,
    RebalanceListener,
    RecordDeserializationFailed,
    TopicPartition,
    WrongMode,
)
from ottla.protocol.records import Codec
from peers.batch_writer import Writer

Fresh = Callable[[str], str]
Cluster = object
BOUND_S = 60


@pytest.fixture
async def writer(cluster: Cluster) -> AsyncIterator[Writer]:
    async with Writer(cluster.bootstrap_servers) as writer:  # type: ignore[attr-defined]
        yield writer


@pytest.fixture
def servers(cluster: Cluster) -> str:
    return str(cluster.bootstrap_servers)  # type: ignore[attr-defined]


async def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(BOUND_S):
        return [await anext(consumer) for _ in range(count)]


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


async def test_all_records_of_all_partitions_come_each_partition_in_order(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("all")
    await admin.topics.create(topic, partitions=3)
    for partition in range(3):
        for batch in range(4):
            await writer.write(topic, *(b"%d-%d" % (batch, n) for n in range(5)), partition=partition)

    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        records = await take(consumer, 60)

    for partition in range(3):
        mine = [record for record in records if record.partition == partition]
        assert [record.offset for record in mine] == list(range(20))
        assert values(mine) == [b"%d-%d" % (batch, n) for batch in range(4) for n in range(5)]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
async def test_compressed_batches_are_read_small_and_large(
    servers: str, writer: Writer, fresh: Fresh, codec: Codec
) -> None:
    topic = fresh("compressed")
    await writer.write(topic, b"small", codec=codec)
    large = [bytes([n % 256]) * 1000 for n in range(10_000)]
    await writer.write(topic, *large, codec=codec)

    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert values(await take(consumer, 10_001)) == [b"small", *large]


async def test_a_waiting_consumer_gets_a_record_as_it_is_written(
    servers: str, writer: Writer, fresh: Fresh
) -> None:
    topic = fresh("soon")
    await writer.write(topic, b"first")
    async with Consumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
    ) as consumer:
        await take(consumer, 1)
        waiting = asyncio.create_task(take(consumer, 1))
        await asyncio.sleep(0.2)
        since_s = time.monotonic()
        await writer.write(topic, b"second")

        assert values(await waiting) == [b"second"]
        assert time.monotonic() - since_s < 5


async def test_getmany_gives_lists_by_partition_and_nothing_after_its_timeout(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("many")
    await admin.topics.create(topic, partitions=2)
    await writer.write(topic, b"a", b"b", b"c", partition=0)
    await writer.write(topic, b"x", partition=1)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)

    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found: dict[TopicPartition, list[bytes | None]] = {one: [], two: []}
        async with asyncio.timeout(BOUND_S):
            while len(found[one]) < 3 or not found[two]:
                for partition, records in (await consumer.getmany(timeout_ms=1000, max_records=2)).items():
                    assert len(records) <= 2
                    found[partition] += values(records)
        assert found == {one: [b"a", b"b", b"c"], two: [b"x"]}
        assert await consumer.getmany(timeout_ms=50) == {}
        assert await consumer.getmany() == {}
        assert consumer.lag(one) == 0


async def test_batches_know_where_they_are(servers: str, writer: Writer, fresh: Fresh) -> None:
    topic = fresh("batches")
    await writer.write(topic, b"a", b"b")
    await writer.write(topic, b"c")
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found: list[bytes | None] = []
        async with asyncio.timeout(BOUND_S):
            async for batch in consumer.batches(max_records=2):
                assert (batch.topic, batch.partition) == (topic, 0)
                assert batch.base_offset == len(found)
                found += [record.value for record in batch]
                assert batch.next_offset == len(found)
                if len(found) == 3:
                    break
        assert found == [b"a", b"b", b"c"]


async def test_seeks_by_offset_beginning_end_and_time(servers: str, writer: Writer, fresh: Fresh) -> None:
    topic = fresh("seeks")
    begin_ms = int(time.time() * 1_000) - 60_000  # what is older than a week is deleted, at any moment
    for n in range(5):
        await writer.write(topic, b"%d" % n, timestamp_ms=begin_ms + n)
    partition = TopicPartition(topic, 0)
    async with Consumer(topic, bootstrap_servers=servers) as consumer:
        consumer.seek(partition, 2)
        assert values(await take(consumer, 2)) == [b"2", b"3"]
        assert await consumer.position(partition) == 4
        await consumer.seek_to_beginning()
        assert values(await take(consumer, 1)) == [b"0"]
        await consumer.seek_to_timestamp(begin_ms + 3)
        assert values(await take(consumer, 1)) == [b"3"]
        await consumer.seek_to_end(partition)
        assert await consumer.position(partition) == 5
        await writer.write(topic, b"5")
        assert values(await take(consumer, 1)) == [b"5"]
        found = await consumer.offsets_for_times({partition: begin_ms + 2})
        assert found[partition] is not None
        assert (found[partition].offset, found[partition].timestamp_ms) == (2, begin_ms + 2)  # type: ignore[union-attr]
        assert await consumer.offsets_for_times({partition: 1 << 50}) == {partition: None}
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 6}
        assert consumer.highwater(partition) == 6


async def test_paused_partitions_give_nothing_until_resumed(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("paused")
    await admin.topics.create(topic, partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await writer.write(topic, *(b"%d" % n for n in range(100)), partition=0)
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        assert values(await take(consumer, 1)) == [b"0"]
        consumer.pause(one)
        await writer.write(topic, b"x", partition=1)
        assert [(record.partition, record.value) for record in await take(consumer, 1)] == [(1, b"x")]
        assert await consumer.getmany(timeout_ms=100) == {}
        assert consumer.paused() == {one}
        consumer.resume(one)
        assert values(await take(consumer, 99)) == [b"%d" % n for n in range(1, 100)]
        assert consumer.assignment() == {one, two}


async def test_an_offset_outside_the_log_is_told_or_reset_as_configured(
    servers: str, writer: Writer, fresh: Fresh
) -> None:
    topic = fresh("outside")
    await writer.write(topic, b"a")
    partition = TopicPartition(topic, 0)
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.seek(partition, 1_000)
        assert values(await take(consumer, 1)) == [b"a"]
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffset):
            await take(consumer, 1)
        consumer.seek(partition, 1_000)
        with pytest.raises(OffsetOutOfRange) as caught:
            await consumer.getmany(timeout_ms=10_000)
        assert caught.value.partitions == {partition: 1_000}
        consumer.seek(partition, 0)
        assert values(await take(consumer, 1)) == [b"a"]


async def test_a_record_that_cannot_be_deserialized_is_told_and_can_be_sought_past(
    servers: str, writer: Writer, fresh: Fresh
) -> None:
    topic = fresh("json")
    await writer.write(topic, b"1", b"{", b"[2]")
    partition = TopicPartition(topic, 0)
    async with Consumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", value_deserializer="json"
    ) as consumer:
        assert (await consumer.getone()).value == 1
        for _ in range(2):
            with pytest.raises(RecordDeserializationFailed) as caught:
                await consumer.getmany(timeout_ms=10_000)
            assert (caught.value.partition, caught.value.offset) == (partition, 1)
        assert await consumer.position(partition) == 1
        consumer.seek(partition, 2)
        assert (await consumer.getone()).value == [2]


async def test_new_partitions_are_found_and_read_from_their_beginning(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("grows")
    await writer.write(topic, b"old")
    async with Consumer(topic, bootstrap_servers=servers, metadata_max_age_ms=200) as consumer:
        await consumer.position(TopicPartition(topic, 0))
        await admin.topics.add_partitions(topic, 2)
        await writer.write(topic, b"new", partition=1)
        assert values(await take(consumer, 1)) == [b"new"]


async def test_new_topics_that_match_a_pattern_are_found(servers: str, writer: Writer, fresh: Fresh) -> None:
    stem = fresh("matching")
    async with Consumer(
        bootstrap_servers=servers, metadata_max_age_ms=200, auto_offset_reset="earliest"
    ) as consumer:
        with pytest.raises(WrongMode):
            await consumer.getmany(timeout_ms=10)
        consumer.subscribe(pattern=f"{stem}-.*")
        waiting = asyncio.create_task(take(consumer, 1))
        await writer.write(f"{stem}-1", b"found")
        await writer.write(f"x{stem}-1", b"not found")
        assert values(await waiting) == [b"found"]
        assert consumer.subscription() == {f"{stem}-1"}


async def test_partitions_are_assigned_by_hand_and_keep_their_places(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("by-hand")
    await admin.topics.create(topic, partitions=2)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    await writer.write(topic, b"a", b"b", partition=0)
    await writer.write(topic, b"x", partition=1)
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([one])
        assert values(await take(consumer, 1)) == [b"a"]
        consumer.assign([one, two])
        assert sorted(values(await take(consumer, 2))) == [b"b", b"x"]  # type: ignore[type-var]
        consumer.assign([two])
        with pytest.raises(NotAssigned):
            await consumer.position(one)


async def test_iterating_ends_after_the_consumers_timeout(servers: str, writer: Writer, fresh: Fresh) -> None:
    topic = fresh("ends")
    await writer.write(topic, b"a", b"b")
    async with Consumer(
        topic, bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=500
    ) as consumer:
        async with asyncio.timeout(BOUND_S):
            assert [record.value async for record in consumer] == [b"a", b"b"]


async def test_what_was_finished_is_committed_as_the_consumer_closes(
    servers: str, writer: Writer, fresh: Fresh
) -> None:
    topic, group = fresh("finished"), fresh("group")
    await writer.write(topic, b"a", b"b", b"c", b"d")
    partition = TopicPartition(topic, 0)

    async with Consumer(
        topic, bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        await take(consumer, 2)  # the second is in hand, and not finished
    async with Consumer(topic, bootstrap_servers=servers, group_id=group) as consumer:
        assert await consumer.committed(partition) == 1
        assert values(await take(consumer, 1)) == [b"b"]
        await consumer.commit()
        assert await consumer.committed(partition) == 2
        assert values(await take(consumer, 1)) == [b"c"]
        await consumer.commit_nowait({partition: 4})
        assert await consumer.committed(partition) == 4
        await consumer.seek_to_committed()
        assert await consumer.position(partition) == 4


async def test_without_a_committed_offset_seek_to_committed_starts_where_a_new_reader_would(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("topic")
    await admin.topics.create(topic, partitions=1)
    partition = TopicPartition(topic, 0)
    await writer.write(topic, b"a", b"b")
    async with Consumer(
        topic, bootstrap_servers=servers, group_id=fresh("group"), auto_offset_reset="earliest"
    ) as consumer:
        await take(consumer, 2)
        assert await consumer.seek_to_committed() == {partition: None}
        assert values(await take(consumer, 2)) == [b"a", b"b"]


async def test_two_members_share_the_partitions_and_listeners_may_seek(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic, group = fresh("shared"), fresh("group")
    await admin.topics.create(topic, partitions=2)
    for partition in range(2):
        await writer.write(topic, b"skipped", b"read", partition=partition)

    class Skips(RebalanceListener):
        def __init__(self, consumer: Consumer) -> None:
            self.consumer = consumer
            self.shares = asyncio.Event()

        async def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
            for each in assigned:
                assert await self.consumer.position(each) in (0, 1)  # the seek of the first may be committed
                self.consumer.seek(each, 1)
            if len(self.consumer.assignment()) == 1:
                self.shares.set()

    async def member() -> tuple[Consumer, Skips]:
        consumer = Consumer(bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest")
        listener = Skips(consumer)
        consumer.subscribe([topic], listener=listener)
        await consumer.start()
        return consumer, listener

    first, one = await member()
    second, two = await member()
    try:
        async with asyncio.timeout(BOUND_S):
            await one.shares.wait()
            await two.shares.wait()
        assert first.assignment() | second.assignment() == {TopicPartition(topic, n) for n in range(2)}
        assert values(await take(first, 1) + await take(second, 1)) == [b"read", b"read"]
    finally:
        await first.stop()
        await second.stop()


async def test_a_topic_that_is_deleted_and_made_again_is_read_on(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("again")
    await admin.topics.create(topic, partitions=1)
    await writer.write(topic, b"old 1", b"old 2")
    async with Consumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        metadata_max_age_ms=300,
        allow_auto_create_topics=False,
    ) as consumer:
        assert values(await take(consumer, 2)) == [b"old 1", b"old 2"]
        await admin.topics.delete(topic)
        assert await consumer.getmany(timeout_ms=1_000) == {}
        await admin.topics.create(topic, partitions=1)
        await writer.write(topic, b"new 1")
        await writer.write(topic, b"new 2", b"new 3")
        assert values(await take(consumer, 3)) == [b"new 1", b"new 2", b"new 3"]


async def test_a_record_larger_than_the_bounds_is_read_all_the_same(
    servers: str, writer: Writer, fresh: Fresh
) -> None:
    topic = fresh("large")
    await writer.write(topic, b"x" * 500_000)
    await writer.write(topic, b"small")
    async with Consumer(
        topic,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1_000,
        fetch_max_bytes=1_000,
    ) as consumer:
        assert values(await take(consumer, 2)) == [b"x" * 500_000, b"small"]


async def test_hundreds_of_partitions_are_read_in_turn(
    servers: str, writer: Writer, fresh: Fresh, admin: Admin
) -> None:
    topic = fresh("wide")
    await admin.topics.create(topic, partitions=100)
    for partition in range(0, 100, 3):
        await writer.write(topic, b"%d" % partition, partition=partition)
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        records = await take(consumer, 34)
        assert sorted(record.partition for record in records) == list(range(0, 100, 3))
        await writer.write(topic, b"late", partition=50)
        assert values(await take(consumer, 1)) == [b"late"]
