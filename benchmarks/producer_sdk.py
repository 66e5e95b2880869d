"""Producers: CPU seconds of the client process per million messages, ours and three others in turns.

A guard fails the run if a keyed send of ours costs 1.5 times an unkeyed one, or more.

All clients send to a topic of eight partitions with acks=all, idempotence, 5 ms of linger and batches of up
to 128 KiB, and have all records acknowledged before the clock stops. There are 1,000 different values, and as
many keys in the idioms with keys.

python benchmarks/producer_sdk.py [--quick] [--only TEXT ...] [--size N] [--rounds N] [--broker kafka]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from clients_compared import (
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

COUNTS = {100: 2_000_000, 1000: 400_000}
WARM_UP = 20_000
CHUNK = 10_000
LINGER_MS, BATCH_BYTES = 5, 128 * 1024
# How many times the CPU of a send without key a send with key may take.
MOST_FOR_KEYS = 1.5
KEYED = (("await send(key)", "await send"), ("send_many(keys)", "send_many"))
# The code of a confluent-kafka user for the delivery report of each record.
BASE = "confluent produce(on_delivery)"


def values_of(size: int) -> list[bytes]:
    """Make 1,000 different values."""
    return [b"%06d" % number + b"v" * (size - 6) for number in range(1000)]


KEYS = [b"customer-%07d" % number for number in range(1000)]


# --- ours


def ours(servers: str) -> Any:
    from ottla.producer import Producer

    return Producer(servers, linger_ms=LINGER_MS, batch_size=BATCH_BYTES)


async def await_send(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`await send(...)` for each record."""
    values = values_of(size)
    async with ours(servers) as producer:
        send = producer.send
        for number in range(WARM_UP):
            await send(topic, values[number % 1000])
        await producer.flush()
        meter.start()
        for _ in range(count // 1000):
            for value in values:
                await send(topic, value)
        await producer.flush()
        meter.stop(count)


async def await_send_keyed(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`await send(..., key=...)` for each record."""
    pairs = list(zip(KEYS, values_of(size), strict=True))
    async with ours(servers) as producer:
        send = producer.send
        for number in range(WARM_UP):
            key, value = pairs[number % 1000]
            await send(topic, value, key=key)
        await producer.flush()
        meter.start()
        for _ in range(count // 1000):
            for key, value in pairs:
                await send(topic, value, key=key)
        await producer.flush()
        meter.stop(count)


async def send_nowait(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`send_nowait(...)`, yielding to the event loop after every thousand; waits if the buffer is full."""
    import asyncio

    from ottla.producer.errors import BufferFull

    values = values_of(size)
    async with ours(servers) as producer:
        send = producer.send_nowait
        await producer.partitions_for(topic)

        async def some(times: int) -> None:
            for _ in range(times):
                for value in values:
                    try:
                        send(topic, value)
                    except BufferFull:
                        await producer.send(topic, value)  # waits for buffer space
                await asyncio.sleep(0)
            await producer.flush()

        await some(WARM_UP // 1000)
        meter.start()
        await some(count // 1000)
        meter.stop(count)


async def send_many(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`await send_many(list)` with 10,000 values at a time."""
    values = values_of(size) * (CHUNK // 1000)
    async with ours(servers) as producer:
        await producer.send_many(topic, values)
        await producer.flush()
        meter.start()
        for _ in range(count // CHUNK):
            await producer.send_many(topic, values)
        await producer.flush()
        meter.stop(count)


async def send_many_keyed(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`await send_many(list, keys=list)` with 10,000 values at a time."""
    values, keys = values_of(size) * (CHUNK // 1000), KEYS * (CHUNK // 1000)
    async with ours(servers) as producer:
        await producer.send_many(topic, values, keys=keys)
        await producer.flush()
        meter.start()
        for _ in range(count // CHUNK):
            await producer.send_many(topic, values, keys=keys)
        await producer.flush()
        meter.stop(count)


async def send_arrow(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`await send_arrow(record batch)` with 10,000 rows at a time."""
    import pyarrow

    values = pyarrow.array(values_of(size) * (CHUNK // 1000), pyarrow.binary())
    batch = pyarrow.RecordBatch.from_arrays([values], names=["value"])
    async with ours(servers) as producer:
        await producer.send_arrow(topic, batch)
        await producer.flush()
        meter.start()
        for _ in range(count // CHUNK):
            await producer.send_arrow(topic, batch)
        await producer.flush()
        meter.stop(count)


# --- confluent-kafka


def confluent(servers: str) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )


def _confluent_produce(
    meter: Meter, servers: str, topic: str, size: int, count: int, *, keyed: bool, callback: bool
) -> None:
    producer, pairs = confluent(servers), list(zip(KEYS, values_of(size), strict=True))
    failures: list[Any] = []
    extra: dict[str, Any] = {}
    if callback:
        extra["on_delivery"] = lambda error, _: failures.append(error) if error else None

    def produce(number: int) -> None:
        key, value = pairs[number % 1000]
        while True:
            try:
                if keyed:
                    producer.produce(topic, value, key, **extra)
                else:
                    producer.produce(topic, value, **extra)
            except BufferError:
                producer.poll(0.01)
            else:
                return

    def some(messages: int) -> None:
        for number in range(messages):
            produce(number)
            if number % 1024 == 0:
                producer.poll(0)
        if producer.flush(120) or failures:
            raise RuntimeError(f"not everything was delivered: {failures[:3]}")

    some(WARM_UP)
    meter.start()
    some(count)
    meter.stop(count)


def confluent_plain(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _confluent_produce(meter, servers, topic, size, count, keyed=False, callback=False)


def confluent_callback(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _confluent_produce(meter, servers, topic, size, count, keyed=False, callback=True)


def confluent_keyed(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _confluent_produce(meter, servers, topic, size, count, keyed=True, callback=True)


def confluent_batch(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`produce_batch` of 10,000 at a time; records that did not fit into its queue are repeated."""
    producer = confluent(servers)
    values = values_of(size) * (CHUNK // 1000)

    def some(chunks: int) -> None:
        for _ in range(chunks):
            messages = [{"value": value} for value in values]
            while messages:
                if producer.produce_batch(topic, messages) == len(messages):
                    break
                messages = [{"value": each["value"]} for each in messages if "_error" in each]
                producer.poll(0.01)
        if producer.flush(120):
            raise RuntimeError("not everything was delivered")

    some(1)
    meter.start()
    some(count // CHUNK)
    meter.stop(count)


# --- aiokafka


def aiokafka(servers: str) -> Any:
    from aiokafka import AIOKafkaProducer

    return AIOKafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )


async def _aiokafka_send(
    meter: Meter, servers: str, topic: str, size: int, count: int, *, keyed: bool
) -> None:
    pairs = list(zip(KEYS, values_of(size), strict=True))
    async with aiokafka(servers) as producer:

        async def some(messages: int) -> None:
            for number in range(messages):
                key, value = pairs[number % 1000]
                await producer.send(topic, value, key if keyed else None)
            await producer.flush()

        await some(WARM_UP // 10)
        meter.start()
        await some(count)
        meter.stop(count)


async def aiokafka_send(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    await _aiokafka_send(meter, servers, topic, size, count, keyed=False)


async def aiokafka_keyed(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    await _aiokafka_send(meter, servers, topic, size, count, keyed=True)


async def aiokafka_batch(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    """`create_batch`, `append`, `send_batch` to one partition after another."""
    values = values_of(size)
    async with aiokafka(servers) as producer:
        partitions = sorted(await producer.partitions_for(topic))

        async def some(messages: int) -> None:
            batch, turn = producer.create_batch(), 0
            for number in range(messages):
                if batch.append(key=None, value=values[number % 1000], timestamp=None) is None:
                    await producer.send_batch(batch, topic, partition=partitions[turn % len(partitions)])
                    batch, turn = producer.create_batch(), turn + 1
                    batch.append(key=None, value=values[number % 1000], timestamp=None)
            await producer.send_batch(batch, topic, partition=partitions[turn % len(partitions)])
            await producer.flush()

        await some(WARM_UP)
        meter.start()
        await some(count)
        meter.stop(count)


# --- kafka-python


def _kafka_python(meter: Meter, servers: str, topic: str, size: int, count: int, *, keyed: bool) -> None:
    from kafka import KafkaProducer

    pairs = list(zip(KEYS, values_of(size), strict=True))
    producer = KafkaProducer(
        bootstrap_servers=servers,
        acks="all",
        enable_idempotence=True,
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
    )

    def some(messages: int) -> None:
        for number in range(messages):
            key, value = pairs[number % 1000]
            producer.send(topic, value, key if keyed else None)
        producer.flush(120)

    some(1_000)
    meter.start()
    some(count)
    meter.stop(count)
    producer.close(10)


def kafka_python_send(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _kafka_python(meter, servers, topic, size, count, keyed=False)


def kafka_python_keyed(meter: Meter, servers: str, topic: str, size: int, count: int) -> None:
    _kafka_python(meter, servers, topic, size, count, keyed=True)


IDIOMS = [
    *(
        Idiom("ottla", how, work, share, loop, goal)
        for how, work, share, goal in (
            ("await send(key)", await_send_keyed, 1.0, {100: 3.0}),
            ("await send", await_send, 1.0, {}),
            ("send_nowait", send_nowait, 1.0, {100: 7.0}),
            ("send_many", send_many, 1.0, {100: 12.0}),
            ("send_many(keys)", send_many_keyed, 1.0, {}),
            ("send_arrow", send_arrow, 1.0, {100: 12.0}),
        )
        for loop in ("asyncio", "uvloop")
    ),
    Idiom("confluent", "produce(key, on_delivery)", confluent_keyed, 0.5),
    Idiom("confluent", "produce(on_delivery)", confluent_callback, 0.5),
    Idiom("confluent", "produce, no callback", confluent_plain, 0.5),
    Idiom("confluent", "produce_batch", confluent_batch, 0.5),
    Idiom("aiokafka", "await send(key)", aiokafka_keyed, 0.05, "asyncio"),
    Idiom("aiokafka", "await send", aiokafka_send, 0.05, "asyncio"),
    Idiom("aiokafka", "await send", aiokafka_send, 0.05, "uvloop"),
    Idiom("aiokafka", "send_batch", aiokafka_batch, 0.25, "asyncio"),
    Idiom("kafka-python", "send(key)", kafka_python_keyed, 0.02),
    Idiom("kafka-python", "send", kafka_python_send, 0.02),
]


def measure(
    servers: str, idioms: list[Idiom], size: int, scale: float, rounds: int
) -> dict[str, list[Result]]:
    """Run all idioms in turns, round after round."""
    results: dict[str, list[Result]] = {idiom.name: [] for idiom in idioms}
    for number in range(rounds):
        for idiom in idioms:
            count = max(CHUNK, int(COUNTS[size] * scale * idiom.share) // CHUNK * CHUNK)
            with fresh_topic(servers, f"bench-{size}-{number}-{idioms.index(idiom)}") as topic:
                result = run_in_child(__file__, idiom.name, servers, topic, size, count)
                if result is None:
                    continue
                results[idiom.name].append(result)
                if records_in(servers, topic) < count:
                    raise RuntimeError(f"{idiom.name} lost records")
    return results


def costly_keys(results: dict[str, list[Result]]) -> list[str]:
    """Compare keyed with unkeyed sends of ours within rounds; return a line for each that costs too much."""
    found = []
    for keyed, plain in KEYED:
        for loop in ("asyncio", "uvloop"):
            pairs = [
                ours.cpu_s_per_million / without.cpu_s_per_million
                for ours, without in zip(
                    results.get(f"ottla {keyed} ({loop})", []),
                    results.get(f"ottla {plain} ({loop})", []),
                    strict=False,
                )
            ]
            if pairs and statistics.median(pairs) >= MOST_FOR_KEYS:
                found.append(f"{keyed} ({loop}) costs {statistics.median(pairs):.2f} times {plain}")
    return found


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
            results = measure(it.bootstrap_servers, idioms, size, scale, rounds)
            title = f"producers, {size} B, {it.name} broker, acks=all, idempotence, {rounds} rounds"
            table(title, idioms, size, results, BASE)
            complete = complete and all(map(len, results.values()))
            if size == min(COUNTS):
                for line in costly_keys(results):
                    print(f"  FAILED: {line}; the limit is {MOST_FOR_KEYS}")
                    complete = False
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
