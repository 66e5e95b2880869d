"""End-to-end figures of a broker, paired with Apache Kafka 4.4 and 3.9 in one run.

Start to first acknowledged record, idle memory, produce-to-consume latency at 1,000 messages a second, MB/s
with confluent-kafka, the broker's CPU for batches in each codec, which it opens before it acknowledges them,
and throughput with 1 and with 1,000 segments per partition.

Each round starts each broker once; what is printed is the median of the rounds.

python benchmarks/broker_end_to_end.py [--quick] [--rounds N] [--only start ...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from contenders import (
    KAFKA,
    KAFKA_3,
    Contender,
    apache_kafka,
    apache_kafka_3,
    kafka_is_here,
    ottla,
    quiet,
    show,
)
from figures import Figure, keep, spread

PARTS = ("start", "latency", "rates", "codecs", "segments")
TITLE = "One broker and confluent-kafka on one machine"

Measures = dict[tuple[str, str], float]
"""The figures of a contender in a round, by their names and units."""
Start = Callable[[Path, Mapping[str, str] | None], AbstractContextManager[Contender]]


def create(contender: Contender, topic: str, **config: str) -> None:
    admin = AdminClient({"log_level": 0, "bootstrap.servers": contender.bootstrap_servers})
    admin.create_topics([NewTopic(topic, num_partitions=1, config=config)])[topic].result(60)


def first_acknowledgement(servers: str) -> None:
    """Produce one record with acks=all and wait for its acknowledgement."""
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0, "retry.backoff.ms": 10})
    producer.produce("first", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
    if producer.flush(60) or failures:
        raise RuntimeError(f"the first record was not acknowledged: {failures}")


def latencies_ms(contender: Contender, topic: str, seconds: float, rate: int = 1000) -> list[float]:
    """Send at a steady rate and measure each record from `produce` to its delivery by the consumer."""
    create(contender, topic)
    arrived: list[float] = []
    wanted = int(seconds * rate)
    ready = threading.Event()

    def consume() -> None:
        consumer = Consumer(
            {"bootstrap.servers": contender.bootstrap_servers, "group.id": "l", "fetch.wait.max.ms": 100}
        )
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        consumer.poll(1)
        ready.set()
        deadline = time.monotonic() + seconds + 30
        while len(arrived) < wanted and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                arrived.append((time.perf_counter_ns() - int(message.value())) / 1e6)
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()
    ready.wait(20)
    producer = Producer({"bootstrap.servers": contender.bootstrap_servers, "linger.ms": 0, "acks": "all"})
    begun = time.perf_counter()
    for number in range(wanted):
        pause = begun + number / rate - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        producer.produce(topic, str(time.perf_counter_ns()).encode())
        producer.poll(0)
    producer.flush(30)
    thread.join(seconds + 60)
    return arrived[len(arrived) // 5 :]


def produce_rate(
    contender: Contender,
    topic: str,
    count: int,
    values: Sequence[bytes],
    *,
    batch_bytes: int = 1_000_000,
    codec: str = "none",
) -> tuple[float, float]:
    """Produce values in turn with acks=all; return MB/s and the broker's CPU seconds per GB of values."""
    failures: list[Any] = []
    producer = Producer(
        {
            "log_level": 0,
            "bootstrap.servers": contender.bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": batch_bytes,
            "compression.type": codec,
            "error_cb": failures.append,
            "queue.buffering.max.messages": 200_000,
        }
    )
    cpu, begun = contender.cpu_seconds(), time.perf_counter()
    for value in islice(cycle(values), count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
            except BufferError:
                producer.poll(0.01)
            else:
                break
    if producer.flush(120) or failures:
        raise RuntimeError(f"records were left over: {failures}")
    seconds = time.perf_counter() - begun
    size = sum(map(len, islice(cycle(values), count)))
    return size / seconds / 1e6, (contender.cpu_seconds() - cpu) / (size / 1e9)


def consume_rate(contender: Contender, topic: str, count: int, size: int) -> tuple[float, float]:
    """Consume from the beginning; return MB/s and the broker's CPU seconds per GB."""
    consumer = Consumer(
        {
            "log_level": 0,
            "bootstrap.servers": contender.bootstrap_servers,
            "group.id": f"rate-{time.monotonic_ns()}",
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 1_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    cpu, begun, seen = contender.cpu_seconds(), time.perf_counter(), 0
    while seen < count:
        messages = consumer.consume(min(10_000, count - seen), timeout=20)
        if not messages:
            raise RuntimeError(f"only {seen} of {count} came")
        seen += len(messages)
    seconds = time.perf_counter() - begun
    consumer.close()
    return count * size / seconds / 1e6, (contender.cpu_seconds() - cpu) / (count * size / 1e9)


def codec_rates(contender: Contender, figures: Measures, quick: bool) -> None:
    """Produce values of about 200 B in each codec, in batches of 16 KB and 256 KB, after rounds to warm up.

    The CPU time is the broker's, whatever the producer's codec costs: the least of three rounds.
    """
    random, words = Random(1), [b"departure", b"arrival", b"gate", b"delayed", b"boarding", b"cancelled"]
    values = [
        b'{"flight": %d, "state": "%s", "note": "%s", "at": %d, "from": "%s"}'
        % (random.randrange(1_000), random.choice(words), b" ".join(random.choices(words, k=12)),
           1_700_000_000 + random.randrange(10**6), random.randbytes(8).hex().encode())
        for _ in range(10_000)
    ]  # fmt: skip
    count, codecs = (50_000 if quick else 300_000), ("none", "gzip", "snappy", "lz4", "zstd")

    def cpu_per_gb(codec: str, batch_bytes: int) -> float:
        topic = f"codec-{codec}-{batch_bytes}"
        return produce_rate(contender, topic, count, values, batch_bytes=batch_bytes, codec=codec)[1]

    kinds = [(codec, batch_bytes) for codec in codecs for batch_bytes in (16_384, 262_144)]
    for codec, batch_bytes in kinds:
        create(contender, f"codec-{codec}-{batch_bytes}")
        cpu_per_gb(codec, batch_bytes)
    for codec, batch_bytes in kinds:
        least = min(cpu_per_gb(codec, batch_bytes) for _ in range(3))
        figures[f"produce 200 B, {codec}, {batch_bytes >> 10} KB, broker's CPU", "s/GB"] = least


def measure(start: Start, folder: Path, quick: bool, parts: Sequence[str]) -> Measures:
    """Measure the figures of one contender."""
    figures: Measures = {}
    with start(folder, None) as contender:
        if "start" in parts:
            until_first(contender, figures)
        if "latency" in parts:
            latency(contender, figures, quick)
        for part, work in (("rates", rates), ("codecs", codec_rates), ("segments", segments)):
            if part in parts:
                work(contender, figures, quick)
        figures["memory after the load", "MiB"] = contender.resident_mib()
    return figures


def until_first(contender: Contender, figures: Measures) -> None:
    """Measure how long the broker took until its first record was safe, and its memory without load."""
    begun = time.perf_counter()
    first_acknowledgement(contender.bootstrap_servers)
    took_s = contender.started_in_s + time.perf_counter() - begun
    figures["start to first acknowledged record", "s"] = took_s
    quiet(contender)
    figures["idle memory", "MiB"] = contender.resident_mib()


def latency(contender: Contender, figures: Measures, quick: bool) -> None:
    # A JVM needs a while under this load until its compilers are done.
    latencies_ms(contender, "latency-warm-up", 10 if quick else 20)
    times = sorted(latencies_ms(contender, "latency", 5 if quick else 20))
    figures["produce to consume, 1,000/s, p50", "ms"] = statistics.median(times)
    figures["produce to consume, 1,000/s, p99", "ms"] = times[len(times) * 99 // 100]


def rates(contender: Contender, figures: Measures, quick: bool) -> None:
    """Produce and consume values of two sizes; a first time is not measured, for a JVM compiles meanwhile."""
    for size, count in ((100, 1_000_000), (1000, 500_000)):
        count //= 4 if quick else 1
        for topic in (f"warm-up-{size}", f"rate-{size}"):
            create(contender, topic)
            produced = produce_rate(contender, topic, count, [b"v" * size])
            consumed = consume_rate(contender, topic, count, size)
        for what, (mb, cpu) in (("produce", produced), ("consume", consumed)):
            figures[f"{what} {size} B", "MB/s"] = mb
            figures[f"{what} {size} B, broker's CPU", "s/GB"] = cpu


def segments(contender: Contender, figures: Measures, quick: bool) -> None:
    """The same data in 1 and in about 1,000 segments: throughput must not depend on it."""
    count, size = (50_000 if quick else 500_000), 1000
    for name, segment_bytes in (("1 segment", 1 << 30), ("1,000 segments", count * size // 1000)):
        topic = f"segments-{segment_bytes}"
        create(contender, topic, **{"segment.bytes": str(max(segment_bytes, 100_000))})
        mb, _ = produce_rate(contender, topic, count, [b"v" * size], batch_bytes=50_000)
        figures[f"produce 1 KB into {name}", "MB/s"] = mb
        mb, _ = consume_rate(contender, topic, count, size)
        figures[f"consume 1 KB out of {name}", "MB/s"] = mb


def figures_of(results: Mapping[str, Sequence[Measures]]) -> list[Figure]:
    """Return each measure of each contender with its value in each round."""
    return [
        Figure(TITLE, measure, unit, name, tuple(found[measure, unit] for found in rounds))
        for name, rounds in results.items()
        for measure, unit in rounds[0]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, a quarter for rates")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="only this part, and the memory after it"
    )
    options = parser.parse_args()
    starts: dict[str, Start] = {"ottla": ottla}
    if kafka_is_here():
        starts |= {KAFKA: apache_kafka, KAFKA_3: apache_kafka_3}
    results: dict[str, list[Measures]] = {name: [] for name in starts}
    for _ in range(options.rounds):
        for name, start in starts.items():
            with tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder:
                results[name].append(measure(start, Path(folder), options.quick, options.only or PARTS))
    figures = figures_of(results)
    keep(figures)
    rows: dict[str, list[str]] = {}
    for found in figures:
        rows.setdefault(f"{found.measure}, {found.unit}", []).append(spread(found.values))
    lines = [(name, *cells) for name, cells in rows.items()]
    show(f"{TITLE}, {options.rounds} rounds", lines, ("", *results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
