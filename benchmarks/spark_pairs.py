"""What the benchmarks of Spark share: topics to read, and two ways of doing the same thing in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from contenders import Contender
from ottla.producer import SyncProducer
from ottla.producer.config import CompressionType
from peers.topics import Topics

PARTITIONS = 4
COUNTS = {100: 4_000_000, 1000: 800_000}
"""How many records of each size, in bytes of their values."""

Pair = tuple[float, float]


def fill(contender: Contender, topic: str, size: int, count: int, codec: CompressionType) -> None:
    """Write a topic of records of a size."""
    with Topics(contender.bootstrap_servers) as topics:
        topics.create(topic, PARTITIONS)
    values = [b"%08d" % number + b"v" * (size - 8) for number in range(1000)]
    with SyncProducer(
        contender.bootstrap_servers, compression_type=codec, linger_ms=5, batch_size=128 * 1024
    ) as producer:
        for partition in range(PARTITIONS):
            for _ in range(count // PARTITIONS // 1000):
                producer.send_many(topic, values, partition=partition)
            producer.flush()


def seconds(work: Callable[[], object]) -> float:
    """Return how long something took."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(one: Callable[[], object], other: Callable[[], object], rounds: int) -> list[Pair]:
    """Return how long both took in each round; who is first alternates, and a first round does not count."""
    found = []
    for number in range(rounds + 1):
        if number % 2:
            took = (seconds(one), seconds(other))
        else:
            second = seconds(other)
            took = (seconds(one), second)
        if number:
            found.append(took)
    return found


def rates(count: int, pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Return the medians of rows a second of both, and of the second's rate over that of the first."""
    one, other = (statistics.median(count / each for each in column) for column in zip(*pairs, strict=True))
    return one, other, statistics.median(first / second for first, second in pairs)
