"""Compaction of a topic, and produce latencies meanwhile, on a running broker: Ottla and Apache Kafka 4.4.

Run `python benchmarks/compaction_compared.py [--quick]`. A topic is filled without compaction, then gets
`cleanup.policy=compact`; the time runs until the broker's cleaner-offset-checkpoint has reached its active
segment. MB/s counts the bytes of the log before, and CPU is that of the whole broker. Memory is the broker's
resident size meanwhile: a JVM keeps what it once had, so that growth would say nothing.
Producers' p99 is of 1,000 records a second with acks=1 to another topic: without compaction, and during it.
Rounds alternate between the brokers. Round 0 is not counted: a JVM compiles in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import Producer

from contenders import KAFKA, Contender, apache_kafka, kafka_is_here, ottla, show, touch_free_memory
from ottla.admin import Admin
from ottla.admin.configs import TOPIC
from paced_producer import latencies_ms

_BOUND_S: Final = 600.0
_PER_S: Final = 1_000
_WATCHED_TOPICS: Final = 5
"""One compaction takes half a second: the 99th percentile would be the fifth longest of 500 times."""
_SETTLES_S: Final = 3.0
_WARM_RECORDS: Final = 500
"""They are not counted: connections are made with them."""
_SETTINGS: Final = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.io.buffer.load.factor": "0.9",
    "log.segment.delete.delay.ms": "1000",
}
_TOPIC_CONFIGS: Final = {
    "segment.bytes": str(16 << 20),
    "retention.ms": "-1",
    # Ottla cleans what is on the disk, the rest in another pass.
    "min.cleanable.dirty.ratio": "0.01",
}
_BEST_IS_MORE: Final = ("MB/s",)
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """The records of a topic."""

    name: str
    value_bytes: int
    keys: int
    codec: str = "none"


CASES: Final = (
    Case("1,000 B, 100,000 keys", 1_000, 100_000),
    Case("100 B, 1,000,000 keys", 100, 1_000_000),
    Case("100 B, 100,000 keys, lz4", 100, 100_000, "lz4"),
)


def fill(contender: Contender, topic: str, case: Case, megabytes: int) -> None:
    """Write records of random keys in batches of about 100 KB."""
    chance = Random(1)
    pool = chance.randbytes(1 << 20)  # larger than any window of a codec, so that values do not repeat
    producer = Producer(
        {
            "bootstrap.servers": contender.bootstrap_servers,
            "compression.type": case.codec,
            "linger.ms": 20,
            "batch.size": 100_000,
        }
    )
    for _ in range(megabytes * 1_000_000 // (case.value_bytes + 20)):
        at = chance.randrange(len(pool) - case.value_bytes)
        key = b"key-%012d" % chance.randrange(case.keys)
        while True:
            try:
                producer.produce(topic, pool[at : at + case.value_bytes], key)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
    assert producer.flush(_BOUND_S) == 0
    # What is still to be written would be measured with the compaction.
    os.sync()
    time.sleep(_SETTLES_S)


def size_bytes(contender: Contender, topic: str) -> int:
    """The size of the log of the topic's only partition."""
    return sum(one.stat().st_size for one in (contender.data_dir / f"{topic}-0").glob("*.log"))


def active_segment(contender: Contender, topic: str) -> int:
    """The base offset of the active segment of the topic's only partition."""
    return max(int(one.stem) for one in (contender.data_dir / f"{topic}-0").glob("*.log"))


def is_clean(contender: Contender, topic: str, end_offset: int) -> bool:
    """Return whether the broker has recorded a compaction of the topic up to an offset."""
    with suppress(FileNotFoundError):
        lines = (contender.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
        return any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) >= end_offset for line in lines)
    return False


@dataclass
class Sampling:
    """Peak memory that a thread records during a measurement."""

    peak_mib: float = 0.0


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread until the block ends and sets its event."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_BOUND_S)


def watch_memory(contender: Contender, into: Sampling) -> Callable[[threading.Event], None]:
    """Return work that records the largest resident size of a broker."""

    def work(stop: threading.Event) -> None:
        while not stop.wait(0.02):
            into.peak_mib = max(into.peak_mib, contender.resident_mib())

    return work


def write_at_a_rate(bootstrap_servers: str, topic: str, warm: Event, stop: Event, into: Connection) -> None:
    """Send how long each acknowledgement took after its record was due, in ms, once `stop` is set."""

    def goes_on(number: int) -> bool:
        if number == _WARM_RECORDS:
            warm.set()
        return not stop.is_set()

    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": 1, "linger.ms": 0})
    into.send(latencies_ms(producer, topic, b"x" * 100, _PER_S, goes_on)[_WARM_RECORDS:])


def latencies_while(contender: Contender, topic: str, work: Callable[[], object]) -> list[float]:
    """Latencies of a producer in a process of its own, where nothing else wants the GIL, during some work."""
    context = get_context("spawn")
    warm, stop, (here, there) = context.Event(), context.Event(), context.Pipe()
    given = (contender.bootstrap_servers, topic, warm, stop, there)
    process = context.Process(target=write_at_a_rate, args=given, daemon=True)
    process.start()
    assert warm.wait(_BOUND_S)
    work()
    stop.set()
    assert here.poll(_BOUND_S)
    found: list[float] = here.recv()
    process.join(_BOUND_S)
    return found


async def _create(contender: Contender, topic: str) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=1, configs=_TOPIC_CONFIGS)


async def _delete(contender: Contender, topic: str) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.delete(topic)
    await asyncio.sleep(2.0)


async def _let_compact(contender: Contender, topic: str) -> None:
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.configs.alter(TOPIC, topic, {"cleanup.policy": "compact"})


def compact(contender: Contender, topic: str) -> float:
    """Make the broker compact the topic; return how long it took, in seconds."""
    end_offset = active_segment(contender, topic)
    asyncio.run(_let_compact(contender, topic))
    begun = time.perf_counter()
    while not is_clean(contender, topic, end_offset):
        assert time.perf_counter() < begun + _BOUND_S
        time.sleep(0.005)
    return time.perf_counter() - begun


def p99(latencies_ms: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(latencies_ms, n=100)[98]


def compaction(contender: Contender, case: Case, topic: str, megabytes: int) -> Figures:
    """Compact a topic while nothing else happens."""
    asyncio.run(_create(contender, topic))
    fill(contender, topic, case, megabytes)
    before, seen = size_bytes(contender, topic) / 1e6, Sampling()
    cpu = contender.cpu_seconds()
    with in_thread(watch_memory(contender, seen)):
        took_s = compact(contender, topic)
    spent = contender.cpu_seconds() - cpu
    asyncio.run(_delete(contender, topic))
    return {
        "MB/s": before / took_s,
        "CPU ms/MB": spent * 1000 / before,
        "memory MiB": seen.peak_mib,
    }


def producers_p99(contender: Contender, case: Case, topic: str, args: argparse.Namespace) -> Figures:
    """Compact topics, one after the other, while a producer writes to another."""
    without: list[float] = []
    during: list[float] = []
    for number in range(_WATCHED_TOPICS):
        compacted, plain = f"{topic}-{number}", f"{topic}-{number}-plain"
        for one in (compacted, plain):
            asyncio.run(_create(contender, one))
        fill(contender, compacted, case, args.megabytes)
        quietly = partial(time.sleep, args.seconds / _WATCHED_TOPICS)
        without += latencies_while(contender, plain, quietly)
        during += latencies_while(contender, plain, partial(compact, contender, compacted))
        for one in (compacted, plain):
            asyncio.run(_delete(contender, one))
    grows = p99(during) / p99(without)
    return {"p99 ms": p99(without), "p99 ms during": p99(during), "p99 grows": grows}


def measure(contender: Contender, number: int, args: argparse.Namespace) -> dict[str, Figures]:
    """One round of all cases on one broker."""
    found = {}
    for at, case in enumerate(CASES):
        found[case.name] = compaction(contender, case, f"compacted-{number}-{at}", args.megabytes)
        print(f"round {number}: {contender.name}: {case.name}: {_shown(found[case.name])}", flush=True)
    found["producers meanwhile"] = producers_p99(contender, CASES[0], f"watched-{number}", args)
    print(f"round {number}: {contender.name}: {_shown(found['producers meanwhile'])}", flush=True)
    return found


def _shown(figures: Figures) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


def report(title: str, rounds: list[list[Figures]]) -> None:
    """Print medians, and the median of the ratios of each round: above 1 is better than Kafka."""
    rows = []
    for name in rounds[0][0]:
        ours, theirs = ([one[side][name] for one in rounds] for side in (0, 1))
        pairs = zip(ours, theirs, strict=True)
        ratios = [(a / b if name in _BEST_IS_MORE else b / a) if a and b else 1.0 for a, b in pairs]
        figures = (statistics.median(each) for each in (ours, theirs, ratios))
        rows.append((name, *(f"{one:.2f}" for one in figures)))
    show(title, rows, ("", "ottla", KAFKA, "ahead by"))


def main() -> None:
    """Measure in alternating rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    args.megabytes, args.seconds, args.rounds = (200, 3.0, 2) if args.quick else (600, 10.0, 4)
    if not kafka_is_here():
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        both = [stack.enter_context(start(folder, _SETTINGS)) for start in (ottla, apache_kafka)]
        touch_free_memory()
        rounds: list[list[dict[str, Figures]]] = []
        for number in range(args.rounds):
            found = {one.name: measure(one, number, args) for one in both[:: -1 if number % 2 else 1]}
            rounds.append([found[one.name] for one in both])
        for title in rounds[0][0]:
            report(title, [[side[title] for side in one] for one in rounds[1:]])


if __name__ == "__main__":
    main()
