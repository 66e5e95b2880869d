"""The search of the console beside our Arrow consumer: the rates of both over the same topic, in turns.

The search is a process of its own, as in the console: its rate counts from its start to its last frame, with
the start of Python. It looks for a text that no record has, so all of the topic is read; an expression and a
pattern are measured beside it. `--pages` measures the first hundred records of a page. `--flat N` searches N
records and compares the memory of the process at the first and at the last tenth. `--beside` measures the
broker's latency for a producer while five people search, and while none does, in turns.

python benchmarks/console_search.py [--count N] [--rounds N] [--flat N] [--pages] [--beside]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from contenders import ottla, show
from ottla.admin import Admin
from ottla.client.config import ClientConfig
from ottla.console.records.filters import Filter
from ottla.console.records.search_process import Job
from ottla.console.records.searches import Searches
from ottla.console.records.wanted import Wanted
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition

TOPIC = "searched"
PARTITIONS = 4
BYTES = 1_000
FILTERS = {
    "a text": Filter(text="in no record at all"),
    "an expression": Filter(expression="value.user.name == 'in no record'"),
    "an expression over all records": Filter(expression="value.amount > 1000"),
    "a pattern": Filter(how="matches", text="user: [0-9]+ in no record"),
}
GOAL = 0.6
PEOPLE = 5
CONSOLE = Searches(time.monotonic)
GOAL_PAGE_MS = 200


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
    async with CONSOLE.open(job, "", "") as running, aclosing(running.frames()) as frames:
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
    """Print the memory of a search at the first and at the last tenth, and the time to cancel it."""
    seen: dict[bool, list[float]] = {False: [], True: []}
    async for frame in search(servers, FILTERS["a text"]):
        if frame["kind"] == "progress" and frame["offsets_read"]:
            (child,) = searching()
            share = frame["offsets_read"] / count
            if not 0.1 < share < 0.9:
                seen[share > 0.5].append(child.memory_info().rss / 2**20)
    first, last = max(seen[False], default=0.0), max(seen[True], default=0.0)
    print(f"memory over {count:,} records: {first:.0f} MiB in the first tenth, {last:.0f} MiB in the last")
    slow = search(servers, FILTERS["an expression over all records"])
    async with aclosing(slow) as frames:
        async for frame in frames:
            if frame["kind"] == "progress" and frame["offsets_read"]:
                break
        began_s = time.perf_counter()
    print(f"cancelled in {(time.perf_counter() - began_s) * 1e3:.0f} ms; left: {searching()}")


def searching() -> list[psutil.Process]:
    """Return the processes of searches."""
    return [child for child in psutil.Process().children() if "search_process" in " ".join(child.cmdline())]


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


async def beside(servers: str, rounds: int) -> None:
    """Print the latency of a paced producer beside five searches, and without one."""
    ratios = list[float]()
    async with Admin(servers) as admin, Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        await admin.topics.create("beside")
        await paced(producer, 2.0)
        for _ in range(rounds):
            alone = await paced(producer, 10.0)
            async with asyncio.TaskGroup() as tasks:
                people = [tasks.create_task(search_on(servers)) for _ in range(PEOPLE)]
                await asyncio.sleep(2)
                searched = await paced(producer, 10.0)
                for person in people:
                    person.cancel()
            ratios.append(searched[1] / alone[1])
            before, with_them = (f"{p50:.2f} and {p99:.2f} ms" for p50, p99 in (alone, searched))
            print(f"p50 and p99: alone {before}, beside {PEOPLE} searches {with_them}", flush=True)
    print(f"p99 beside {PEOPLE} searches: {statistics.median(ratios):.2f} times that without; goal 1.1")


async def paced(producer: Producer, seconds: float) -> tuple[float, float]:
    """Send a record each ten milliseconds; return the median and the 99th percentile of the latency in ms."""
    times, ends_s = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        began_s = time.perf_counter()
        await producer.send_and_wait("beside", b"x" * 100)
        times.append((time.perf_counter() - began_s) * 1e3)
        await asyncio.sleep(0.01)
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


async def search_on(servers: str) -> None:
    """Search again and again, as one of the people at one console."""
    while True:
        async for _ in search(servers, FILTERS["a text"]):
            pass


@contextmanager
def filled(count: int) -> Iterator[str]:
    """Run a broker with the topic; return its address."""
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder,
        ottla(Path(folder), {"log.retention.check.interval.ms": "86400000"}) as broker,
    ):
        asyncio.run(fill(broker.bootstrap_servers, count))
        yield broker.bootstrap_servers


def main() -> int:
    """Run the benchmark."""
    if sys.argv[1:2] == ["--arrow"]:
        asyncio.run(read_arrow(sys.argv[2], int(sys.argv[3])))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flat", type=int, default=0)
    parser.add_argument("--pages", action="store_true")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    count = chosen.flat or (100_000 if chosen.quick else chosen.count)
    with filled(count) as servers:
        asyncio.run(pages(servers))
        if chosen.flat:
            asyncio.run(memory(servers, count))
        elif chosen.beside:
            asyncio.run(beside(servers, chosen.rounds))
        elif not chosen.pages:
            asyncio.run(compare(servers, count, 1 if chosen.quick else chosen.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
