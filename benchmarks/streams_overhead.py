"""Stream processing: what it costs per record, without a broker, and how near it comes to the ideal rate.

The scheduler and the workers run in this process on records that are in memory: 100-byte values, 10,000 keys,
order by key, an async handler that does nothing. Time is the processor time of this process, less than which
no machine needs. The other figures have 1,000 keys and handlers that sleep for 100 and for 10 ms: the ideal
rate is concurrency divided by that time; what a bare `asyncio.sleep` reaches with as many tasks stands beside
it. They are rates of the steady state: the clock runs from the second record of each key (all workers are
started) to the last but one (none is idle). Ours and bare sleeps run in turns.

python benchmarks/streams_overhead.py [--quick] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.intake import IntakeLimits
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Handler, Stop, Verdict, Work

PARTITION = TopicPartition("orders", 0)
BATCH = 256
VALUE = b"x" * 100
CONCURRENCY = 1_000
SLEEPS = ((0.1, 40), (0.01, 200))
"""Seconds of a handler, and records of each key."""


class Nothing:
    """A failure policy and outputs that nothing asks for anything."""

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        return Stop()

    async def set_aside(self, work: Work, error: BaseException) -> None:
        raise error

    def settle(self, work: Work) -> None:
        return None

    def discard(self, work: Work) -> None: ...

    def revoked(self, partition: TopicPartition) -> None: ...


async def no_op(work: Work) -> None: ...


class Sleeping:
    """A handler that sleeps, and the rate at which it ends while all workers are busy."""

    def __init__(self, seconds: float, count: int) -> None:
        self._seconds = seconds
        self._first, self._last = 2 * CONCURRENCY, count - CONCURRENCY
        self._ended = 0
        self._times_s: list[float] = []

    async def __call__(self, work: Work | None) -> None:
        await asyncio.sleep(self._seconds)
        self._ended += 1
        if self._ended in (self._first, self._last):
            self._times_s.append(time.perf_counter())

    @property
    def of_ideal(self) -> float:
        """The share of the ideal rate."""
        first_s, last_s = self._times_s
        return (self._last - self._first) / (last_s - first_s) * self._seconds / CONCURRENCY


def records(count: int, keys: int) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(PARTITION.topic, PARTITION.partition, each, key=b"%d" % (each % keys), value=VALUE)
        for each in range(count)
    ]


async def handle(given: list[ConsumerRecord], handler: Handler) -> float:
    """Handle all records; return the seconds of the processor."""
    scheduler = Scheduler("key", limits=IntakeLimits())
    scheduler.assign(PARTITION, 0)
    nothing = Nothing()
    failures: list[BaseException] = []
    workers = Workers(
        scheduler, handler, nothing, nothing, None, max_concurrency=CONCURRENCY, handler_timeout_ms=None,
        fail=failures.append, on_resume_due=lambda: None,
    )  # fmt: skip
    cpu_s, pause_s = time.process_time(), 0.0 if handler is no_op else 0.002
    async with asyncio.TaskGroup() as tasks:
        workers.start(tasks)
        for first in range(0, len(given), BATCH):
            batch = given[first : first + BATCH]
            scheduler.add(PARTITION, batch, batch[-1].offset + 1)
            workers.wake()
            scheduler.intake()
            while scheduler.totals.buffered > 5_000:  # noqa: ASYNC110
                await asyncio.sleep(pause_s)
        while scheduler.totals.buffered:  # noqa: ASYNC110
            await asyncio.sleep(pause_s)
        spent_s = time.process_time() - cpu_s
        workers.stop()
    if failures:
        raise failures[0]
    return spent_s


async def bare_sleep(handler: Sleeping, count: int) -> None:
    """Sleep as often in as many tasks, without records."""

    async def task() -> None:
        for _ in range(count // CONCURRENCY):
            await handler(None)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(task())


def compare(seconds: float, of_key: int, rounds: int) -> None:
    """Print the shares of the ideal rate: ours, bare sleeps, and ours of theirs, each a median."""
    some = records(of_key * CONCURRENCY, keys=CONCURRENCY)
    pairs = []
    for _ in range(rounds):
        ours, bare = Sleeping(seconds, len(some)), Sleeping(seconds, len(some))
        asyncio.run(handle(some, ours))
        asyncio.run(bare_sleep(bare, len(some)))
        pairs.append((ours.of_ideal, bare.of_ideal, ours.of_ideal / bare.of_ideal))
    shares = [statistics.median(each) for each in zip(*pairs, strict=True)]
    print(
        f"1,000 keys, handlers of {seconds * 1_000:.0f} ms: {shares[0]:.1%} of the ideal rate; "
        f"bare sleeps reach {shares[1]:.1%}, of which ours is {shares[2]:.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    many = records(20_000 if options.quick else 200_000, keys=10_000)
    spent = [asyncio.run(handle(many, no_op)) / len(many) * 1e6 for _ in range(rounds)]
    print(f"overhead per record: {statistics.median(spent):.2f} µs of processor time (goal: under 2)")
    for seconds, of_key in SLEEPS:
        compare(seconds, of_key // 4 if options.quick else of_key, rounds)


if __name__ == "__main__":
    main()
