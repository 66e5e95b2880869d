"""Consumers and producers of the log in memory, and what a kill leaves of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer import CommitFailed, ConsumerConfig, NoOffset, NotAssigned
from ottla.producer import ProducerConfig, RecordTooLarge
from ottla.protocol.errors import IllegalGeneration, UnknownMemberId
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing import StreamsTest
from ottla.streams.testing.cluster import Life, MemoryCluster, MemoryGroup
from ottla.streams.testing.memory_consumer import MemoryConsumer
from ottla.streams.testing.memory_log import MemoryLog
from ottla.streams.testing.memory_producer import MemoryProducer
from peers.stream_apps import pricing

P0, P1 = TopicPartition("letters", 0), TopicPartition("letters", 1)


@asynccontextmanager
async def cluster_with(*values: bytes, partitions: int = 1) -> AsyncIterator[MemoryCluster]:
    """Serve a cluster with records in partition 0 of one topic."""
    log = MemoryLog(partitions)
    log.ensure(["letters"])
    for value in values:
        log.partition(P0).append(None, value, 0, ())
    async with asyncio.TaskGroup() as tasks:
        serving: list[asyncio.Task[None]] = []

        def serve(group: MemoryGroup) -> None:
            serving.append(tasks.create_task(group.serve()))

        yield MemoryCluster(log, serve)
        for each in serving:
            each.cancel()


def consumer(cluster: MemoryCluster, *, number: int = 1, **settings: Any) -> MemoryConsumer:
    settings = {"auto_offset_reset": "earliest", **settings}
    return MemoryConsumer(ConsumerConfig.from_properties({}, **settings), cluster, Life(number))


async def test_a_consumer_reads_the_partitions_that_it_is_given_where_it_seeks() -> None:
    async with cluster_with(b"a", b"b", b"c") as cluster, consumer(cluster) as reader:
        reader.assign([P0])
        reader.seek(P0, 1)
        first = await reader.getmany(timeout_ms=100, max_records=1)
        reader.pause(P0)
        paused = await reader.getmany(timeout_ms=1)
        reader.resume(P0)
        second = await reader.getmany(timeout_ms=100)

        assert [each.value for each in first[P0]] == [b"b"]
        assert paused == {}
        assert [each.value for each in second[P0]] == [b"c"]
        assert (await reader.position(P0), reader.highwater(P0), reader.lag(P0)) == (3, 3, 0)
        with pytest.raises(NotAssigned):
            reader.seek(P1, 0)


@pytest.mark.parametrize(("reset", "position"), [("earliest", 0), ("latest", 2)])
async def test_a_new_group_starts_where_the_settings_say(reset: str, position: int) -> None:
    async with cluster_with(b"a", b"b") as cluster:
        reader = consumer(cluster, group_id="g", auto_offset_reset=reset)
        reader.subscribe(["letters"])
        async with reader:
            assert await reader.position(P0) == position


async def test_a_new_group_without_a_start_fails() -> None:
    async with cluster_with(b"a") as cluster:
        reader = consumer(cluster, group_id="g", auto_offset_reset="none")
        reader.subscribe("letters")
        with pytest.raises(NoOffset):
            await reader.start()
        await reader.stop()


async def test_a_member_commits_for_its_own_partitions_only() -> None:
    async with cluster_with(b"a", partitions=2) as cluster:
        one, two = (consumer(cluster, number=each, group_id="g") for each in (1, 2))
        for each in (one, two):
            each.subscribe("letters")
            await each.start()
        (mine,), (other,) = one.assignment(), two.assignment()

        await one.commit({mine: OffsetAndMetadata(1, "note")})
        with pytest.raises(CommitFailed):
            await one.commit({other: 1})
        await one.stop()
        with pytest.raises(CommitFailed):
            await one.commit({mine: 2})

        assert await two.committed_offsets([mine, other]) == {mine: OffsetAndMetadata(1, "note")}
        await two.stop()


async def test_a_transaction_takes_no_offsets_of_a_member_that_a_rebalance_has_passed() -> None:
    config = ProducerConfig.from_properties({}, transactional_id="id")
    async with cluster_with(b"a") as cluster:
        reader = consumer(cluster, group_id="g")
        reader.subscribe("letters")
        async with reader, MemoryProducer(config, cluster, Life(1), lambda: 0) as producer:
            await producer.begin_transaction()
            await producer.send_offsets({P0: 1}, reader.group_metadata())
            generation = reader.group_metadata().generation_id
            with pytest.raises(IllegalGeneration):
                await producer.send_offsets(
                    {P0: 1}, reader.group_metadata()._replace(generation_id=generation - 1)
                )
            with pytest.raises(UnknownMemberId):
                await producer.send_offsets({P0: 1}, GroupMetadata("g", generation, "somebody"))


async def test_a_producer_refuses_what_is_larger_than_its_settings_allow() -> None:
    config = ProducerConfig.from_properties({}, max_request_size=1_000)
    async with cluster_with() as cluster, MemoryProducer(config, cluster, Life(1), lambda: 0) as producer:
        with pytest.raises(RecordTooLarge):
            await producer.send("letters", b"x" * 1_000)


def test_what_is_aborted_is_never_seen() -> None:
    log = MemoryLog(1)
    cluster = MemoryCluster(log, on_group=lambda group: None)
    config = ProducerConfig.from_properties({}, transactional_id="id")

    async def run() -> None:
        async with MemoryProducer(config, cluster, Life(1), lambda: 0) as producer:
            for value, commits in ((b"aborted", False), (b"committed", True)):
                await producer.begin_transaction()
                await producer.send("letters", value)
                await producer.send_offsets({TopicPartition("orders", 0): len(value)}, "readers")
                assert [each.value for each in log.partitions("letters")[0].records] == []
                await (producer.commit_transaction() if commits else producer.abort_transaction())

    asyncio.run(run())

    assert [each.value for each in log.partitions("letters")[0].records] == [b"committed"]
    assert cluster.groups["readers"].offsets == {TopicPartition("orders", 0): OffsetAndMetadata(9)}


def test_a_kill_leaves_nothing_of_an_open_transaction() -> None:
    app = pricing(processing_guarantee="exactly-once", transaction_interval_ms=1_000)
    # The first transaction is at 1,000 ms, and the kill at 1,400 ms.
    with StreamsTest(app) as test:
        test.send("orders", {"amount": 1}, key="anna")
        test.advance(ms=1_100)
        test.send("orders", {"amount": 2}, key="anna")
        test.advance(ms=300)
        assert test.received("priced") == [{"price": 3}]
        test.kill_member()
        test.advance(hours=1)
        assert test.received("priced") == [{"price": 3}]
        test.start_member()
        test.advance(seconds=1)

        assert test.received("priced") == [{"price": 3}, {"price": 6}]
