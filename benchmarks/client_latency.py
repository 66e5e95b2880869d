"""Latency of clients: single records, until their acknowledgement and until their delivery.

Nothing lingers. `send and wait` ends with the acknowledgement (acks=all); `produce to consume` ends when a
consumer of the same client, in the same process, returns the record. Ours and three others in turns.

python benchmarks/client_latency.py [--quick] [--only TEXT ...] [--rounds N] [--broker kafka]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clients_compared import broker, fresh_topic, run_on
from contenders import show
from figures import Figure, keep

WARM_UP = 200
VALUE = b"v" * 100


@dataclass(frozen=True)
class Way:
    """One client's way to do it; returns the milliseconds of each record."""

    client: str
    what: str
    work: Callable[[str, str, int], Any]
    loop: str = ""

    @property
    def name(self) -> str:
        return f"{self.client}, {self.what}" + (f" ({self.loop})" if self.loop else "")


async def ottla_send(servers: str, topic: str, count: int) -> list[float]:
    from ottla.producer import Producer

    times: list[float] = []
    async with Producer(servers, linger_ms=0) as producer:
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send_and_wait(topic, VALUE, partition=0)
            times.append(time.perf_counter() - begun)
    return times


async def ottla_through(servers: str, topic: str, count: int) -> list[float]:
    from ottla.consumer import Consumer
    from ottla.producer import Producer
    from ottla.protocol.topics import TopicPartition

    times: list[float] = []
    consumer = Consumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    async with Producer(servers, linger_ms=0) as producer, consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send(topic, VALUE, partition=0)
            await anext(consumer)
            times.append(time.perf_counter() - begun)
    return times


async def aiokafka_send(servers: str, topic: str, count: int) -> list[float]:
    from aiokafka import AIOKafkaProducer

    times: list[float] = []
    async with AIOKafkaProducer(
        bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=0
    ) as producer:
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send_and_wait(topic, VALUE, partition=0)
            times.append(time.perf_counter() - begun)
    return times


async def aiokafka_through(servers: str, topic: str, count: int) -> list[float]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    times: list[float] = []
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest")
    async with (
        AIOKafkaProducer(
            bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=0
        ) as producer,
        consumer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(count):
            begun = time.perf_counter()
            await producer.send(topic, VALUE, partition=0)
            await consumer.getone()
            times.append(time.perf_counter() - begun)
    return times


def _confluent_producer(servers: str) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )


def confluent_send(servers: str, topic: str, count: int) -> list[float]:
    producer, times = _confluent_producer(servers), list[float]()
    for _ in range(count):
        delivered: list[Any] = []
        begun = time.perf_counter()
        producer.produce(topic, VALUE, partition=0, on_delivery=lambda *fate, to=delivered: to.append(fate))
        while not delivered:
            producer.poll(1)
        times.append(time.perf_counter() - begun)
    return times


def confluent_through(servers: str, topic: str, count: int) -> list[float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    producer, times = _confluent_producer(servers), list[float]()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "latency", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for _ in range(count):
        begun = time.perf_counter()
        producer.produce(topic, VALUE, partition=0)
        while (message := consumer.poll(1)) is None or message.error():
            continue
        times.append(time.perf_counter() - begun)
        producer.poll(0)
    consumer.close()
    return times


def kafka_python_send(servers: str, topic: str, count: int) -> list[float]:
    from kafka import KafkaProducer

    producer, times = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0), list[float]()
    for _ in range(count):
        begun = time.perf_counter()
        producer.send(topic, VALUE, partition=0).get(10)
        times.append(time.perf_counter() - begun)
    producer.close(5)
    return times


def kafka_python_through(servers: str, topic: str, count: int) -> list[float]:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    producer, times = KafkaProducer(bootstrap_servers=servers, acks="all", linger_ms=0), list[float]()
    consumer = KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(topic, 0)])
    for _ in range(count):
        begun = time.perf_counter()
        producer.send(topic, VALUE, partition=0)
        next(consumer)
        times.append(time.perf_counter() - begun)
    consumer.close()
    producer.close(5)
    return times


SEND, THROUGH = "send and wait", "produce to consume"
WAYS = [
    Way("ottla", SEND, ottla_send, "asyncio"),
    Way("ottla", SEND, ottla_send, "uvloop"),
    Way("confluent", SEND, confluent_send),
    Way("aiokafka", SEND, aiokafka_send, "asyncio"),
    Way("aiokafka", SEND, aiokafka_send, "uvloop"),
    Way("kafka-python", SEND, kafka_python_send),
    Way("ottla", THROUGH, ottla_through, "asyncio"),
    Way("ottla", THROUGH, ottla_through, "uvloop"),
    Way("confluent", THROUGH, confluent_through),
    Way("aiokafka", THROUGH, aiokafka_through, "asyncio"),
    Way("aiokafka", THROUGH, aiokafka_through, "uvloop"),
    Way("kafka-python", THROUGH, kafka_python_through),
]


def in_child(way: Way, servers: str, topic: str, count: int) -> list[float]:
    """Measure in a child process; return milliseconds, sorted, without those of the warm-up."""
    task = json.dumps({"name": way.name, "servers": servers, "topic": topic, "count": count + WARM_UP})
    done = subprocess.run(
        [sys.executable, __file__, "--child", task], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{way.name} failed:\n{done.stderr[-3000:]}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return sorted(1000 * each for each in times[WARM_UP:])


def be_a_child(task_json: str) -> int:
    """The child of `in_child`."""
    task = json.loads(task_json)
    way = next(each for each in WAYS if each.name == task["name"])
    made = way.work(task["servers"], task["topic"], task["count"])
    found: list[list[float]] = []

    async def wait() -> None:
        found.append(await made)

    if asyncio.iscoroutine(made):
        run_on(way.loop, wait())
    print(json.dumps(found[0] if found else made))
    return 0


def figures_of(
    ways: Iterable[Way], found: Mapping[str, list[tuple[float, float]]], broker: str
) -> Iterator[Figure]:
    """Yield the median and the 99th percentile of each round, a table for each thing that is done."""
    for way in ways:
        title, subject = f"{way.what}, 100 B, {broker} broker", way.name.replace(f", {way.what}", "")
        for index, measure in enumerate(("p50", "p99")):
            yield Figure(title, measure, "ms", subject, tuple(pair[index] for pair in found[way.name]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer records, in two rounds")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--only", action="append", help="only ways whose name has this in it")
    parser.add_argument("--broker", choices=("ottla", "kafka"), default="ottla")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return be_a_child(options.child)
    rounds, count = options.rounds or (2 if options.quick else 5), 500 if options.quick else 2_000
    ways = [way for way in WAYS if not options.only or any(text in way.name for text in options.only)]
    found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    with broker(options.broker) as it:
        for number in range(rounds):
            for way in ways:
                with fresh_topic(it.bootstrap_servers, f"latency-{number}-{ways.index(way)}") as topic:
                    times = in_child(way, it.bootstrap_servers, topic, count)
                found[way.name].append((statistics.median(times), times[len(times) * 99 // 100]))
    keep(figures_of(ways, found, options.broker))
    rows = [
        (name, *(f"{statistics.median(each):.3f}" for each in zip(*pairs, strict=True)))
        for name, pairs in found.items()
    ]
    show(
        f"one record of 100 B at a time, {options.broker} broker, {rounds} rounds",
        rows,
        ("", "p50 ms", "p99 ms"),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
