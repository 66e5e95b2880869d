"""Consumers: CPU seconds of the client process per million messages, ours and three others in turns.

All clients read the same topic of eight partitions from its beginning, without a group, and access each
record's value. The clock starts with the first records and stops with the last. Ours checks CRCs, as aiokafka
and kafka-python do; librdkafka does not by default.

python benchmarks/consumer_sdk.py [--quick] [--only TEXT ...] [--size N] [--rounds N] [--broker kafka]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clients_compared import (
    PARTITIONS,
    Idiom,
    Meter,
    Result,
    be_a_child,
    broker,
    chosen,
    fresh_topic,
    records_in,
    run_in_child,
    table,
)

COUNTS = {100: 4_000_000, 1000: 600_000}
BASE = "confluent consume(500)"


# --- ours


@asynccontextmanager
async def ours(servers: str, topic: str) -> AsyncIterator[Any]:
    from ottla.consumer import Consumer
    from ottla.protocol.topics import TopicPartition

    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        yield consumer


async def async_for(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    async with ours(servers, topic) as consumer:
        await consumer.getone()
        seen, wanted = 0, count - 1
        meter.start()
        async for record in consumer:
            record.value  # noqa: B018  what everybody does with a record, and the work is in it
            seen += 1
            if seen == wanted:
                break
        meter.stop(wanted)


async def getmany(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    async with ours(servers, topic) as consumer:
        seen = sum(map(len, (await consumer.getmany(timeout_ms=10_000)).values()))
        wanted = count - seen
        seen = 0
        meter.start()
        while seen < wanted:
            for records in (await consumer.getmany(timeout_ms=10_000)).values():
                for record in records:
                    record.value  # noqa: B018
                seen += len(records)
        meter.stop(wanted)


async def batches(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    async with ours(servers, topic) as consumer:
        first = len(await anext(consumer.batches()))
        wanted, seen = count - first, 0
        meter.start()
        async for batch in consumer.batches():
            for record in batch:
                record.value  # noqa: B018
            seen += len(batch)
            if seen >= wanted:
                break
        meter.stop(wanted)


async def arrow(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """Record batches; values are a column, without an object for each."""
    async with ours(servers, topic) as consumer:
        wanted = count - (await consumer.fetch_arrow(timeout_ms=10_000)).num_rows
        seen = 0
        meter.start()
        while seen < wanted:
            batch = await consumer.fetch_arrow(timeout_ms=10_000)
            batch.column("value")
            seen += batch.num_rows
        meter.stop(wanted)


async def arrow_values(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """Record batches with values only."""
    async with ours(servers, topic) as consumer:
        wanted = count - (await consumer.fetch_arrow(timeout_ms=10_000, columns=["value"])).num_rows
        seen = 0
        meter.start()
        while seen < wanted:
            seen += (await consumer.fetch_arrow(timeout_ms=10_000, columns=["value"])).num_rows
        meter.stop(wanted)


# --- confluent-kafka


def _confluent(meter: Meter, servers: str, topic: str, count: int, at_once: int) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,  # by default it waits a second when its queue is full
            "queued.min.messages": 1_000_000,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    wanted = count - len(consumer.consume(at_once, timeout=10))
    seen = 0
    meter.start()
    while seen < wanted:
        messages = consumer.consume(at_once, timeout=10)
        for message in messages:
            message.value()
        seen += len(messages)
    meter.stop(wanted)
    consumer.close()


def consume_500(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _confluent(meter, servers, topic, count, 500)


def consume_10000(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _confluent(meter, servers, topic, count, 10_000)


# --- aiokafka


@asynccontextmanager
async def aiokafka(servers: str, topic: str) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        yield consumer
    finally:
        await consumer.stop()


async def aiokafka_getmany(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    async with aiokafka(servers, topic) as consumer:
        wanted = count - sum(map(len, (await consumer.getmany(timeout_ms=10_000)).values()))
        seen = 0
        meter.start()
        while seen < wanted:
            for records in (await consumer.getmany(timeout_ms=10_000)).values():
                for record in records:
                    record.value  # noqa: B018
                seen += len(records)
        meter.stop(wanted)


async def aiokafka_for(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    async with aiokafka(servers, topic) as consumer:
        await consumer.getone()
        seen, wanted = 0, count - 1
        meter.start()
        async for record in consumer:
            record.value  # noqa: B018
            seen += 1
            if seen == wanted:
                break
        meter.stop(wanted)


# --- kafka-python


def kafka_python_poll(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
    wanted = count - sum(map(len, consumer.poll(timeout_ms=10_000).values()))
    seen = 0
    meter.start()
    while seen < wanted:
        for records in consumer.poll(timeout_ms=10_000).values():
            for record in records:
                record.value  # noqa: B018
            seen += len(records)
    meter.stop(wanted)
    consumer.close()


IDIOMS = [
    *(
        Idiom("ottla", how, work, 1.0, loop, goal)
        for how, work, goal in (
            ("getmany", getmany, {100: 7.0}),
            ("async for", async_for, {100: 3.5}),
            ("batches", batches, {}),
            ("Arrow", arrow, {100: 14.0, 1000: 1.8}),
            ("Arrow, values only", arrow_values, {100: 14.0, 1000: 1.8}),
        )
        for loop in ("asyncio", "uvloop")
    ),
    Idiom("confluent", "consume(500)", consume_500, 0.5),
    Idiom("confluent", "consume(10000)", consume_10000, 0.5),
    Idiom("aiokafka", "getmany", aiokafka_getmany, 0.2, "asyncio"),
    Idiom("aiokafka", "getmany", aiokafka_getmany, 0.2, "uvloop"),
    Idiom("aiokafka", "async for", aiokafka_for, 0.1, "asyncio"),
    Idiom("kafka-python", "poll", kafka_python_poll, 0.05),
]


def fill(servers: str, topic: str, size: int, count: int) -> None:
    """Write the records that all clients read, in batches like those of a busy producer."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 50, "batch.size": 128 * 1024, "log_level": 0}
    )
    values = [b"%06d" % number + b"v" * (size - 6) for number in range(1000)]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, values[number % 1000], partition=number // 1000 % PARTITIONS)
            except BufferError:
                producer.poll(0.05)
            else:
                break
    if producer.flush(120) or records_in(servers, topic) != count:
        raise RuntimeError("the topic could not be filled")


def measure(servers: str, idioms: list[Idiom], size: int, count: int, rounds: int) -> dict[str, list[Result]]:
    """Run all idioms in turns, round after round."""
    results: dict[str, list[Result]] = {idiom.name: [] for idiom in idioms}
    with fresh_topic(servers, f"bench-{size}") as topic:
        fill(servers, topic, size, count)
        for _ in range(rounds):
            for idiom in idioms:
                share = int(count * idiom.share)
                result = run_in_child(__file__, idiom.name, servers, topic, size, share)
                results[idiom.name] += [result] if result else []
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, in two rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", help="only idioms whose name has this in it")
    parser.add_argument("--size", type=int, action="append", choices=tuple(COUNTS))
    parser.add_argument("--broker", choices=("ottla", "kafka"), default="ottla")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return be_a_child(IDIOMS, options.child)
    rounds, scale = options.rounds or (2 if options.quick else 5), 0.2 if options.quick else 1.0
    idioms = chosen(IDIOMS, options.only or ())
    complete = True
    with broker(options.broker) as it:
        for size in options.size or COUNTS:
            count = int(COUNTS[size] * scale)
            results = measure(it.bootstrap_servers, idioms, size, count, rounds)
            table(f"consumers, {size} B, {it.name} broker, {rounds} rounds", idioms, size, results, BASE)
            complete = complete and all(map(len, results.values()))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
