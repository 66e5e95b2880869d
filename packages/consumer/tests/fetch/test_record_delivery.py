"""Delivery of records while tasks wait, seek, close and unsubscribe."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
    ConsumerClosed,
    ConsumerRecord,
    TopicPartition,
    WrongMode,
)
from peers.scripted_topic import FAST, A, Log, reader, take, waits_for


async def test_assigning_while_somebody_waits_loses_nothing(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=2)
    b = TopicPartition("t", 1)
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([])
        waiting = await waits_for(consumer)
        consumer.assign([A, b])
        await asyncio.sleep(0.05)
        consumer.assign([A])
        log.add(b"a")
        log.add(b"b", partition=1)
        assert await waiting == [b"a"]


async def test_a_seek_while_somebody_waits_counts(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    async with reader(broker) as consumer:
        await take(consumer, 2)
        waiting = await waits_for(consumer)
        consumer.seek(A, 0)
        assert await waiting == [b"a"]


async def test_buffered_records_do_not_starve_the_event_loop(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"x" for _ in range(1000)))
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async with reader(broker) as consumer:
        await take(consumer, 1)
        heart = asyncio.create_task(beat())
        before = beats
        for _ in range(20):
            time.sleep(0.02)  # noqa: ASYNC251 - a handler that does not await
            await anext(consumer)
        heart.cancel()
        assert beats - before >= 10


class Watcher:
    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def on_consume(self, records):  # type: ignore[no-untyped-def]
        self.seen += [record.value for record in records]
        return [record for record in records if record.value != b"hidden"]


async def test_interceptors_see_records_and_may_leave_some_out(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"hidden", b"b", b"c", b"hidden")
    watcher = Watcher()
    async with reader(broker, replace(FAST, interceptors=[watcher])) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]
        found = await consumer.getmany(timeout_ms=1000)
        assert [record.value for record in found[A]] == [b"c"]
    assert watcher.seen == [b"a", b"hidden", b"b", b"c", b"hidden"]


async def test_several_tasks_may_iterate_and_each_record_is_delivered_to_one(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=4)
    async with reader(broker) as consumer:
        tasks = [asyncio.create_task(take(consumer, 100)) for _ in range(4)]
        for round_ in range(10):
            for partition in range(4):
                log.add(*(b"%d-%d-%d" % (partition, round_, n) for n in range(10)), partition=partition)
            await asyncio.sleep(0.03)
        found = [value for task in tasks for value in await task]
    assert len(found) == len(set(found)) == 400


async def test_a_deserializer_may_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.key = b"key"
    log.add(b"a", b"b", b"c")

    def seeks(key: bytes) -> bytes:
        if consumer._positions[A].position == 0:
            consumer.seek(A, 2)
        return key

    consumer = reader(broker, replace(FAST, key_deserializer=seeks, value_deserializer=bytes.upper))
    async with consumer:
        assert await take(consumer, 1) == [b"C"]


async def test_a_closed_consumer_delivers_no_buffered_records(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
    with pytest.raises(ConsumerClosed):
        await consumer.getmany()
    assert [record async for record in consumer] == []


async def test_a_consumer_that_unsubscribed_delivers_no_buffered_records(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.unsubscribe()
        with pytest.raises(WrongMode):
            await take(consumer, 1)


async def test_unfinished_records_are_forgotten_when_their_partition_is_assigned_again(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(20)))
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([A])
        assert await take(consumer, 3) == [b"0", b"1", b"2"]
        consumer.assign([])
        consumer.assign([A])
        consumer._positions[A].seek(10)  # as what others committed meanwhile does
        assert consumer._lifecycle.fetch.assigned.finished_offsets()[A].offset == 10


async def test_a_task_that_waits_for_records_raises_when_another_unsubscribes(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.pause(A)
        while consumer._lifecycle.fetch.fetcher._outstanding:  # noqa: ASYNC110 - its answer would wake whoever waits
            await asyncio.sleep(0.001)
        waiting = await waits_for(consumer)
        consumer.unsubscribe()

        with pytest.raises(WrongMode):
            await waiting


async def test_anext_and_iteration_of_the_consumer_take_from_one_place(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer, asyncio.timeout(60):
        assert (await anext(consumer)).value == b"a"
        async for record in consumer:
            assert record.value == b"b"
            break
        assert (await consumer.getone()).value == b"c"


class WithoutEmptyValues(Consumer):
    """Leaves records with an empty value out."""

    async def __anext__(self) -> ConsumerRecord:
        while not (record := await super().__anext__()).value:
            pass
        return record


async def test_iteration_calls_an_overridden_anext(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"", b"b", b"", b"d")
    async with (
        WithoutEmptyValues("t", bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer,
        asyncio.timeout(60),
    ):
        values: list[bytes | None] = []
        async for record in consumer:
            values.append(record.value)
            if len(values) == 2:
                break
        assert values == [b"b", b"d"]
