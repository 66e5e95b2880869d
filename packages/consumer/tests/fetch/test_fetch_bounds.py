"""The bounds of what is buffered."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
    TopicPartition,
)
from ottla.consumer.fetch.fetcher import held_bytes
from ottla.protocol.messages.fetch import FetchRequest
from peers.scripted_topic import BOUND_S, FAST, A, Log, reader, take, waits_for


async def test_no_more_than_two_responses_of_a_partition_are_buffered(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(10_000)))
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"0"]
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(broker.seen(FetchRequest)) <= 2
        assert await take(consumer, 9_999) == [b"%d" % n for n in range(1, 10_000)]


NARROW = replace(FAST, fetch_max_bytes=1_000)


B = TopicPartition("t", 1)


async def fill(log: Log, consumer: Consumer) -> None:
    """Buffer more of the first partition than the bound; then the other one is fetched."""
    log.add(*(b"%d" % n for n in range(1_000)))
    await take(consumer, 1)
    log.add(b"other", partition=1)


async def test_buffered_data_of_a_paused_partition_blocks_no_other_partition(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker, partitions=2)
    async with reader(broker, NARROW) as consumer:
        await fill(log, consumer)
        consumer.pause(A)
        assert await take(consumer, 1) == [b"other"]


async def test_buffered_data_of_others_does_not_block_a_partition_that_is_asked_for(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker, partitions=2)
    async with reader(broker, NARROW) as consumer:
        await fill(log, consumer)
        async with asyncio.timeout(BOUND_S):
            while not (found := await consumer.getmany(B)):  # noqa: ASYNC110 - who polls without waiting
                await asyncio.sleep(0.001)
        assert [record.value for record in found[B]] == [b"other"]
        assert await take(consumer, 1) == [b"1"]


async def test_the_bound_holds_if_all_partitions_are_asked_for(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=20)
    async with reader(broker, replace(FAST, fetch_max_bytes=1)) as consumer:
        waiting = await waits_for(consumer)
        log.add(b"x")
        await waiting
        for partition in log.records:
            log.add(b"y", partition=partition)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert [state.partition for state in consumer._positions if state.buffered] == [A]


async def test_the_rest_of_a_large_response_does_not_keep_it_alive(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=2)
    log.add(b"small")
    log.add(*(b"%0100d" % n for n in range(1000)), partition=1)
    other = TopicPartition("t", 1)
    async with reader(broker, replace(FAST, fetch_max_bytes=50_000)) as consumer, asyncio.timeout(BOUND_S):
        assert len((await consumer.getmany(other, timeout_ms=None, max_records=1000))[other]) == 1000
        (fetched,) = consumer._positions[A].buffered
        assert len((await consumer.getmany(other, timeout_ms=20)).get(other, ())) == 0
        assert held_bytes([fetched]) < 1_000
