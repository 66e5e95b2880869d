"""Dedupe: what a new message costs with each store, with and without the prefilter.

A guard is driven as a processor drives it, by 500 concurrent handlers that do nothing; marks are as durable
as each store makes them. "filled" starts with so many marks in the store, as after a restart; the time to
read them all, for the prefilter or for the topic's window, is beside it.

python benchmarks/streams_dedupe.py [--quick] [--records N] [--filled N]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from contenders import show
from ottla.broker.testing import BrokerProcess
from ottla.protocol.topics import TopicPartition
from ottla.streams.dedupe import (
    Dedupe,
    DedupeStore,
    MemoryStore,
    RedisStore,
    Scope,
    SqliteStore,
    TopicStore,
)
from peers.dedupe_work import Member, SomeWork
from peers.redis import Redis, missing_redis

CONCURRENCY = 500
PART = 5_000
PARTITION = TopicPartition("orders", 0)

Row = tuple[str, str, str, str, str]


def stores(stack: ExitStack, folder: Path) -> Iterator[tuple[str, DedupeStore, bool]]:
    """Yield each store with its name, and whether a prefilter is used."""
    yield "memory", MemoryStore(max_ids=None), False
    for prefilter in (False, True):
        yield "SQLite, fsync", SqliteStore(folder / f"full-{prefilter}.db"), prefilter
    for prefilter in (False, True):
        store = SqliteStore(folder / f"normal-{prefilter}.db", synchronous="normal")
        yield "SQLite, no fsync", store, prefilter
    if missing_redis() is None:
        server = stack.enter_context(Redis(folder / "redis"))
        for prefilter in (False, True):
            yield "Redis, fsync", RedisStore(server.url, name=f"bench-{prefilter}"), prefilter
    broker = stack.enter_context(BrokerProcess(folder / "broker", {"num.partitions": "1"}))
    yield "topic", TopicStore(broker.bootstrap_servers, name="bench", max_ids=None), False


async def handle(member: Member, works: Iterator[SomeWork]) -> None:
    for work in works:
        await member.guard.handler(work)
        settled = member.guard.outputs.settle(work)
        if settled is not None:
            await settled


async def fill(store: DedupeStore, count: int) -> None:
    scope = Scope(PARTITION.topic, PARTITION.partition)
    async with store:
        await store.assign(scope)
        for start in range(0, count, PART):
            await store.mark(scope, [b"filled-%020d" % n for n in range(start, min(start + PART, count))])


async def measure(store: DedupeStore, records: int, *, prefilter: bool, is_filled: bool) -> tuple[float, ...]:
    """Return microseconds per new record, questions to the store per 1,000, and seconds to be ready."""
    async with Dedupe(store, prefilter=prefilter) as dedupe:
        member, began_s = Member(dedupe), time.perf_counter()
        await member.run(SomeWork(b"first"))
        while prefilter and not dedupe.is_prefiltered(PARTITION):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        ready_s = time.perf_counter() - began_s
        works = [SomeWork(b"%d-%d" % (is_filled, n), offset=n) for n in range(records)]
        queue, began_s = iter(works), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(handle(member, islice(queue, None)))
        elapsed_s = time.perf_counter() - began_s
        asked = dedupe.statistics.asked / records * 1_000
    return elapsed_s / records * 1e6, asked, ready_s


async def row(name: str, store: DedupeStore, records: int, filled: int, *, prefilter: bool) -> Row:
    empty_us, _, _ = await measure(store, records, prefilter=prefilter, is_filled=False)
    await fill(store, filled)
    filled_us, asked, ready_s = await measure(store, records, prefilter=prefilter, is_filled=True)
    label = f"{name}, prefilter" if prefilter else name
    return label, f"{empty_us:,.1f}", f"{filled_us:,.1f}", f"{asked:,.0f}", f"{ready_s:,.2f}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--filled", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    records, filled = (5_000, 20_000) if options.quick else (options.records, options.filled)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ottla-dedupe-")))
        rows: list[tuple[str, ...]] = [
            asyncio.run(row(name, store, records, filled, prefilter=prefilter))
            for name, store, prefilter in stores(stack, folder)
        ]
        header = ("store", "µs, empty", "µs, filled", "asked of 1,000", "s to be ready")
        show(f"{records:,} new records; filled: {filled:,} marks", rows, header)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
