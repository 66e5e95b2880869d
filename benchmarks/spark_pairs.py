"""Shared parts of the Spark benchmarks: topics to read, and paired runs in turns."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from contenders import Contender
from ottla.producer import SyncProducer
from ottla.producer.config import CompressionType
from peers.topics import Topics

PARTITIONS = 4
COUNTS = {100: 4_000_000, 1000: 800_000}
"""The number of records of each size, in bytes of their values."""


@dataclass(frozen=True)
class Took:
    """The time of a run, and the CPU time of Spark and its Python workers, without the broker."""

    seconds: float
    cpu_seconds: float


Pair = tuple[Took, Took]


def fill(contender: Contender, topic: str, size: int, count: int, codec: CompressionType) -> None:
    """Write a topic of records of one size."""
    with Topics(contender.bootstrap_servers) as topics:
        topics.create(topic, PARTITIONS)
    # Codecs can compress half of a value but not all of it, otherwise no segment would fill up and be closed.
    chance = random.Random(size)
    half = (size - 8) // 2
    values = [b"%08d" % number + chance.randbytes(half) + b"v" * (size - 8 - half) for number in range(1000)]
    with SyncProducer(
        contender.bootstrap_servers, compression_type=codec, linger_ms=5, batch_size=128 * 1024
    ) as producer:
        for partition in range(PARTITIONS):
            for _ in range(count // PARTITIONS // 1000):
                producer.send_many(topic, values, partition=partition)
            producer.flush()


def cpu_seconds(without: int) -> float:
    """Return the CPU time of this process and all its descendants, except the broker with this process id."""
    me = psutil.Process()
    total = 0.0
    for each in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if each.pid != without:
                used = each.cpu_times()
                # Workers that have ended are counted with their parents.
                total += used.user + used.system
                total += 0.0 if each.pid == me.pid else used.children_user + used.children_system
    return total


def in_turns(
    contender: Contender, one: Callable[[], object], other: Callable[[], object], rounds: int
) -> list[Pair]:
    """Return the results of both in each round; the order alternates, and a first round does not count."""

    def took(work: Callable[[], object]) -> Took:
        cpu, begun = cpu_seconds(contender.pid), time.perf_counter()
        work()
        return Took(time.perf_counter() - begun, cpu_seconds(contender.pid) - cpu)

    found = []
    for number in range(rounds + 1):
        if number % 2:
            pair = (took(one), took(other))
        else:
            second = took(other)
            pair = (took(one), second)
        if number:
            found.append(pair)
    return found


def rates(count: int, pairs: Sequence[Pair], what: str = "seconds") -> tuple[float, float, float]:
    """Return the medians of rows per second of both, and of the second's rate over that of the first.

    With `cpu_seconds` they are rows per CPU second.
    """
    spent = [(getattr(one, what), getattr(other, what)) for one, other in pairs]
    first, second = (
        statistics.median(count / each for each in column) for column in zip(*spent, strict=True)
    )
    return first, second, statistics.median(one / other for one, other in spent)
