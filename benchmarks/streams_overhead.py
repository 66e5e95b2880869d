"""Stream processing: what it costs per record, without a broker, and how near it comes to the ideal rate.

The scheduler and the workers run in this process on records that are in memory: 100-byte values, 10,000 keys,
order by key, an async handler that does nothing. Time is the processor time of this process, less than which
no machine needs. The second figure has 1,000 keys and handlers that sleep for 100 ms: the ideal rate is
concurrency divided by that time; what a bare `asyncio.sleep` reaches with as many tasks stands beside it.

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
SLEEP_S = 0.1


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


async def sleep(work: Work) -> None:
    await asyncio.sleep(SLEEP_S)


def records(count: int, keys: int) -> list[ConsumerRecord]:
    return [
        ConsumerRecord(PARTITION.topic, PARTITION.partition, each, key=b"%d" % (each % keys), value=VALUE)
        for each in range(count)
    ]


async def handle(given: list[ConsumerRecord], handler: Handler) -> tuple[float, float]:
    """Handle all records; return the seconds on the clock and of the processor."""
    scheduler = Scheduler("key", limits=IntakeLimits())
    scheduler.assign(PARTITION, 0)
    nothing = Nothing()
    failures: list[BaseException] = []
    workers = Workers(
        scheduler, handler, nothing, nothing, None, max_concurrency=CONCURRENCY, handler_timeout_ms=None,
        fail=failures.append, on_resume_due=lambda: None,
    )  # fmt: skip
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        workers.start(tasks)
        for first in range(0, len(given), BATCH):
            batch = given[first : first + BATCH]
            scheduler.add(PARTITION, batch, batch[-1].offset + 1)
            workers.wake()
            scheduler.intake()
            while scheduler.totals.buffered > 5_000:  # noqa: ASYNC110
                await asyncio.sleep(0 if handler is no_op else 0.001)
        while scheduler.totals.buffered:  # noqa: ASYNC110
            await asyncio.sleep(0 if handler is no_op else 0.001)
        spent = time.perf_counter() - wall_s, time.process_time() - cpu_s
        workers.stop()
    if failures:
        raise failures[0]
    return spent


async def bare_sleep(count: int) -> float:
    """Return the seconds that as many tasks of bare sleeps take, CONCURRENCY at once."""
    since_s = time.perf_counter()

    async def task() -> None:
        for _ in range(count // CONCURRENCY):
            await asyncio.sleep(SLEEP_S)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENCY):
            tasks.create_task(task())
    return time.perf_counter() - since_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    many = records(20_000 if options.quick else 200_000, keys=10_000)
    spent = [asyncio.run(handle(many, no_op))[1] / len(many) * 1e6 for _ in range(rounds)]
    print(f"overhead per record: {statistics.median(spent):.2f} µs of processor time (goal: under 2)")
    some = records(10 * CONCURRENCY, keys=CONCURRENCY)
    ideal = CONCURRENCY / SLEEP_S
    for _ in range(rounds):
        ours = len(some) / asyncio.run(handle(some, sleep))[0]
        bare = len(some) / asyncio.run(bare_sleep(len(some)))
        print(
            f"1,000 keys, handlers of 100 ms: {ours:,.0f} records/s, {ours / ideal:.1%} of the ideal rate; "
            f"bare sleeps reach {bare / ideal:.1%}"
        )


if __name__ == "__main__":
    main()
