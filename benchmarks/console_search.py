"""The search of the console beside our Arrow consumer: the rates of both over the same topic, in turns.

The search is a process of its own, as in the console: its rate counts from its start to its last frame, with
the start of Python. It looks for a text that no record has, so all of the topic is read; an expression and a
pattern are measured beside it. `--pages` measures the first hundred records of a page. `--flat N` searches N
small records, of which none matches, compares the memory of the process at the first and at the last tenth,
and cancels the search. `--beside` measures the broker's latency for a producer while five people search, and
while none does, in turns. `--kafka` takes Apache Kafka 4.4 in place of our broker.

python benchmarks/console_search.py [--count N] [--rounds N] [--flat N] [--pages] [--beside] [--kafka]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from contenders import apache_kafka, ottla, show
from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.logins.access import OWNER
from ottla.console.records.filters import Filter
from ottla.console.records.search_process import NICENESS, Job
from ottla.console.records.searches import Searches
from ottla.console.records.wanted import Wanted
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition
from peers.batch_writer import Writer

TOPIC = "searched"
PARTITIONS = 4
BYTES = 1_000
FILTERS = {
    "a text": Filter(text="in no record at all"),
    "an expression": Filter(expression="value.user.name == 'in no record'"),
    "an expression over all records": Filter(expression="value.amount > 1000"),
    "a pattern": Filter(how="matches", text="user: [0-9]+ in no record"),
}
FLAT_FILTERS = {"a text": FILTERS["a text"], "a number": Filter(expression="value.n < 0")}
"""Neither is true of a record; the second is asked of each."""
SMALL_BATCH = 10_000
GOAL = 0.6
PEOPLE = 5
CONSOLE = Searches(time.monotonic)
GOAL_PAGE_MS = 200
GOAL_BESIDE = 1.1
TURN_S = 1.0
SETTLE_S = 0.05


def record_value(number: int) -> bytes:
    """Return a record of a kilobyte: JSON with a few fields."""
    known = {"id": number, "user": {"name": f"user-{number % 1_000}"}, "amount": number % 77 / 2, "pad": ""}
    head = json.dumps(known).encode()
    return head[:-2] + (b"%016x" % (number * 2_654_435_761 % 2**64)) * ((BYTES - len(head)) // 16) + b'"}'


async def fill(servers: str, count: int) -> None:
    """Create the topic, and write records into its partitions in turns."""
    async with Admin(servers) as admin:
        await admin.topics.create(TOPIC, partitions=PARTITIONS)
    async with Producer(bootstrap_servers=servers, linger_ms=20, batch_size=256 << 10) as producer:
        for number in range(count):
            await producer.send(
                TOPIC, record_value(number), key=b"%d" % number, partition=number % PARTITIONS
            )


async def fill_quickly(servers: str, count: int) -> None:
    """Create the topic, and write the same batch of small records again and again."""
    builder = BatchBuilder(1 << 20)
    for number in range(SMALL_BATCH):
        builder.append(None, b'{"n":%d}' % number, 1)
    batch = builder.build()
    async with Admin(servers) as admin, Writer(servers) as writer:
        await admin.topics.create(TOPIC, partitions=PARTITIONS)
        for number in range(count // SMALL_BATCH):
            await writer.write_raw(TOPIC, number % PARTITIONS, batch)


async def arrow_rate(servers: str, count: int) -> float:
    """Return the records per second of our Arrow consumer in a process of its own, from its start."""
    began_s = time.perf_counter()
    child = await asyncio.create_subprocess_exec(sys.executable, __file__, "--arrow", servers, str(count))
    assert await child.wait() == 0
    return count / (time.perf_counter() - began_s)


async def read_arrow(servers: str, count: int) -> None:
    """Read the topic as columns."""
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
        seen = 0
        async for batch in consumer.arrow_batches():
            seen += batch.num_rows
            if seen >= count:
                return


async def search(
    servers: str, chosen: Filter, *, newest: bool = False
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Search the whole topic; return the frames."""
    start = "newest" if newest else "beginning"
    wanted = Wanted(start=start, filter=chosen, counts_all=True)  # type: ignore[arg-type]
    job = Job("search", servers, ClientConfig(), TOPIC, tuple(range(PARTITIONS)), wanted)
    async with CONSOLE.open(job, "", OWNER) as running, aclosing(running.frames()) as frames:
        async for frame in frames:
            yield frame


async def search_rate(servers: str, count: int, chosen: Filter, *, newest: bool = False) -> float:
    """Return the records per second of a search, from the start of its process."""
    began_s, progress = time.perf_counter(), dict[str, Any]()
    async for frame in search(servers, chosen, newest=newest):
        if frame["kind"] == "progress":
            progress = dict(frame)
    assert progress["offsets_read"] == count, progress
    return count / (time.perf_counter() - began_s)


async def compare(servers: str, count: int, rounds: int) -> None:
    """Print the rates of searches, and their ratio to the Arrow consumer within rounds."""
    kinds = {name: (chosen, False) for name, chosen in FILTERS.items()}
    kinds["a text, newest first"] = FILTERS["a text"], True
    rates: dict[str, list[float]] = {name: [] for name in ("Arrow consumer", *kinds)}
    for _ in range(rounds):
        rates["Arrow consumer"].append(await arrow_rate(servers, count))
        for name, (chosen, newest) in kinds.items():
            rates[name].append(await search_rate(servers, count, chosen, newest=newest))
    rows = [(name, *_cells(name, found, rates["Arrow consumer"])) for name, found in rates.items()]
    header = ("", "records/s", "of Arrow", "spread", f"goal {GOAL:.0%}")
    show(f"Searching {count:,} records of {BYTES} bytes", rows, header)


def _cells(name: str, found: list[float], arrow: list[float]) -> tuple[str, ...]:
    ratios = [rate / base for rate, base in zip(found, arrow, strict=True)]
    judged = "" if name != "a text" else "reached" if statistics.median(ratios) >= GOAL else "missed"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return f"{statistics.median(found):,.0f}", f"{statistics.median(ratios):.2f}", spread, judged


async def memory(servers: str, count: int) -> None:
    """Print the time to cancel a search, and the memory of searches at the first and at the last tenth."""
    async with aclosing(search(servers, FLAT_FILTERS["a number"])) as frames:
        async for frame in frames:
            if frame["kind"] == "progress" and frame["offsets_read"]:
                break
        began_s = time.perf_counter()
    print(f"cancelled in {(time.perf_counter() - began_s) * 1e3:.0f} ms; left: {searching()}")
    for name in ("a text", "a number"):
        began_s, seen = time.perf_counter(), dict[bool, list[float]]({False: [], True: []})
        progress = dict[str, Any]()
        async for frame in search(servers, FLAT_FILTERS[name]):
            if frame["kind"] == "progress" and frame["offsets_read"]:
                progress, share = dict(frame), frame["offsets_read"] / count
                with suppress(psutil.NoSuchProcess):
                    for child in searching() if not 0.1 < share < 0.9 else ():
                        seen[share > 0.5].append(child.memory_info().rss / 2**20)
        first, last = max(seen[False], default=0.0), max(seen[True], default=0.0)
        rate = progress["offsets_read"] / (time.perf_counter() - began_s)
        print(f"{name}: {progress['found']} of {progress['records']:,} records match, {rate:,.0f} records/s; "
              f"{first:.0f} MiB in the first tenth, {last:.0f} MiB in the last", flush=True)  # fmt: skip


def searching() -> list[psutil.Process]:
    """Return the processes of searches that run."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if "search_process" in " ".join(child.cmdline()):
                found.append(child)
    return found


async def pages(servers: str) -> None:
    """Print how long the page of the newest hundred records takes."""
    from ottla.console.settings import ClusterSettings
    from ottla.console.testing import serving

    async with serving(ClusterSettings("local", servers, ClientConfig)) as console:
        times = []
        for _ in range(20):
            began_s = time.perf_counter()
            answer = await console.get(f"/c/local/topics/{TOPIC}/records?count=100")
            times.append((time.perf_counter() - began_s) * 1e3)
            assert answer.text.count('<tr id="r') == 100
    median = statistics.median(times[1:])
    judged = "reached" if median <= GOAL_PAGE_MS else "missed"
    first = f"the first {times[0]:.0f} ms"
    print(f"a page of 100 records: {median:.0f} ms, {first}; goal {GOAL_PAGE_MS} ms {judged}")


LOADS = {
    "one search": ("--people", "1", 0),
    f"{PEOPLE} people who search": ("--people", str(PEOPLE), 0),
    "our consumer, at the searches' priority": ("--reader", "", NICENESS),
}
"""Each: the part of this script that makes the load, its argument, and by how much it yields."""


async def beside(servers: str, rounds: int, seconds: int) -> None:
    """Print the latency of a paced producer beside searches and beside a consumer, and without these.

    The producer, the console with its people and the consumer are processes of their own. A load is stopped
    and goes on each second, so that whatever else the machine does falls on both sides alike.
    """
    async with Admin(servers) as admin:
        await admin.topics.create("beside")
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in LOADS}
    for _ in range(rounds):
        for name, load in LOADS.items():
            alone, during, rate = await in_turns(servers, load, seconds)
            row = (*quantiles(alone), *quantiles(during), rate)
            found[name].append(row)
            p50, p99, p50_beside, p99_beside, _ = row
            print(f"{name}: p50 and p99 {p50_beside:.2f} and {p99_beside:.2f} ms, without {p50:.2f} and "
                  f"{p99:.2f} ms, {rate:,.0f} records/s", flush=True)  # fmt: skip
    cells = []
    for name, rows in found.items():
        medians = [statistics.median(part) for part in zip(*rows, strict=True)]
        ratios = [row[3] / row[1] for row in rows]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        shown = [f"{ms:.2f}" for ms in (*medians[:4], statistics.median(ratios))]
        cells.append((name, *shown, spread, f"{medians[4]:,.0f}"))
    header = ("", "p50 ms", "p99 ms", "p50 beside", "p99 beside", f"p99 times, goal {GOAL_BESIDE}", "spread",
              "records/s")  # fmt: skip
    show(f"A producer beside readers of records of {BYTES} bytes", cells, header)


async def in_turns(
    servers: str, load: tuple[str, str, int], seconds: int
) -> tuple[list[float], list[float], float]:
    """Return a producer's latencies in ms without a load and beside it, and the load's records per second."""
    part, argument, niceness = load
    reader = await asyncio.create_subprocess_exec(
        "nice", "-n", str(niceness), sys.executable, __file__, part, servers, argument,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert reader.stdout is not None
    await reader.stdout.readline()  # it has begun to read
    producer = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--paced", servers, str(2 * seconds), stdout=asyncio.subprocess.PIPE
    )
    assert producer.stdout is not None
    await producer.stdout.readline()
    turns = list[tuple[float, float, bool]]()
    for number in range(2 * seconds):
        is_beside = number % 2 == 1
        os.killpg(reader.pid, signal.SIGCONT if is_beside else signal.SIGSTOP)
        began_s = time.monotonic()
        await asyncio.sleep(TURN_S)
        turns.append((began_s + SETTLE_S, time.monotonic(), is_beside))
    said, _ = await producer.communicate()
    read, _ = await reader.communicate(b"")
    sides: dict[bool, list[float]] = {False: [], True: []}
    for begun_s, took_ms in json.loads(said):
        for begins_s, ends_s, is_beside in turns:
            if begins_s <= begun_s < ends_s:
                sides[is_beside].append(took_ms)
    return sides[False], sides[True], int(read) / seconds / TURN_S


def quantiles(times_ms: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return statistics.median(times_ms), statistics.quantiles(times_ms, n=100)[98]


async def produce_paced(servers: str, seconds: float) -> None:
    """Send a record each ten milliseconds; print the time of each and its latency in ms."""
    times = list[tuple[float, float]]()
    async with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        for _ in range(50):
            await producer.send_and_wait("beside", b"x" * 100)
        print("begun", flush=True)
        gc.freeze()
        ends_s = time.monotonic() + seconds * TURN_S
        while (began_s := time.monotonic()) < ends_s:
            await producer.send_and_wait("beside", b"x" * 100)
            times.append((began_s, (time.monotonic() - began_s) * 1e3))
            await asyncio.sleep(0.01)
    print(json.dumps(times))


async def search_until_told(servers: str, people: int) -> None:
    """Search again and again, as people at one console, until the input ends; print the offsets read."""
    counts = [0] * people

    async def search_on(person: int) -> None:
        while True:
            read = 0
            async for frame in search(servers, FILTERS["a text"]):
                if frame["kind"] == "progress":
                    if not sum(counts) and frame["offsets_read"]:
                        print("begun", flush=True)
                    counts[person] += frame["offsets_read"] - read
                    read = frame["offsets_read"]

    async with asyncio.TaskGroup() as tasks:
        searches = [tasks.create_task(search_on(person)) for person in range(people)]
        await asyncio.to_thread(sys.stdin.read)
        for task in searches:
            task.cancel()
    print(sum(counts))


async def read_until_told(servers: str) -> None:
    """Read the topic as columns again and again until the input ends; print how many records."""
    seen = 0
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]

    async def read_on() -> None:
        nonlocal seen
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign(partitions)
            ends = sum((await consumer.end_offsets(partitions)).values())
            while True:
                left = ends
                async for batch in consumer.arrow_batches():
                    if not seen:
                        print("begun", flush=True)
                    seen, left = seen + batch.num_rows, left - batch.num_rows
                    if left <= 0:
                        break
                await consumer.seek_to_beginning(*partitions)

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read_on())
        await asyncio.to_thread(sys.stdin.read)
        reading.cancel()
    print(seen)


@contextmanager
def filled(
    count: int, fill_with: Callable[[str, int], Coroutine[Any, Any, None]] = fill, *, kafka: bool = False
) -> Iterator[str]:
    """Run a broker with the topic; return its address."""
    kept = {"log.retention.check.interval.ms": "86400000", "log.retention.ms": "-1"}
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder,
        (apache_kafka if kafka else ottla)(Path(folder), kept) as broker,
    ):
        asyncio.run(fill_with(broker.bootstrap_servers, count))
        yield broker.bootstrap_servers


PARTS: Final[Mapping[str, Callable[..., Coroutine[Any, Any, None]]]] = {
    "--arrow": lambda servers, count: read_arrow(servers, int(count)),
    "--paced": lambda servers, seconds: produce_paced(servers, float(seconds)),
    "--people": lambda servers, people: search_until_told(servers, int(people)),
    "--reader": lambda servers, _: read_until_told(servers),
}
"""The parts that are processes of their own."""


def main() -> int:
    """Run the benchmark, or a part of it."""
    if sys.argv[1:2] and sys.argv[1] in PARTS:
        asyncio.run(PARTS[sys.argv[1]](*sys.argv[2:]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flat", type=int, default=0)
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    count = chosen.flat or (100_000 if chosen.quick else chosen.count)
    with filled(count, fill_quickly if chosen.flat else fill, kafka=chosen.kafka) as servers:
        asyncio.run(pages(servers))
        if chosen.flat:
            asyncio.run(memory(servers, count))
        elif chosen.beside:
            asyncio.run(beside(servers, chosen.rounds, 3 if chosen.quick else 30))
        elif not chosen.pages:
            asyncio.run(compare(servers, count, 1 if chosen.quick else chosen.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
