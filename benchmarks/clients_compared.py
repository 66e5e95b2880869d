"""Comparison of clients: each in its own process, in turns, by CPU seconds.

CPU time depends less than wall time on other processes; so a figure is the median over rounds of the client
process's CPU seconds per million messages, and ratios are medians of ratios within a round. CPU speed still
differs between machines, and over time on a shared one. Goals were set where awaiting an empty coroutine
takes 76 ns; each process measures that here, before and after its work, and goals are scaled in proportion.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contenders import Contender, apache_kafka, ottla, show
from figures import Figure, figure, keep

PARTITIONS = 8
# The time to await an empty coroutine on the machine of the goals.
GOAL_AWAIT_NS = 76.0
_SETTINGS = {"log.segment.delete.delay.ms": "200", "log.retention.check.interval.ms": "86400000"}


@dataclass(frozen=True)
class Idiom:
    """One way to use one client; `share` is its fraction of the messages: slow ones get fewer."""

    client: str
    how: str
    work: Callable[[Meter, str, str, int, int], Any]
    share: float = 1.0
    loop: str = ""
    goal: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.client} {self.how}" + (f" ({self.loop})" if self.loop else "")


class Meter:
    """CPU and wall time of this process between `start` and `stop`."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0
        self.messages = 0

    def start(self) -> None:
        """Start; earlier work such as connecting and warming up does not count."""
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()

    def stop(self, messages: int) -> None:
        """Stop after this many messages."""
        self.cpu_s, self.wall_s = _cpu_seconds() - self._cpu, time.perf_counter() - self._wall
        self.messages = messages


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Result:
    """The result of one run of an idiom."""

    cpu_s_per_million: float
    wall_s_per_million: float
    resident_mib: float
    await_ns: float


def await_ns() -> float:
    """Return the CPU nanoseconds that this machine currently takes to await an empty coroutine."""

    async def nothing() -> None:
        return

    async def some() -> None:
        for _ in range(300_000):
            await nothing()

    begun = _cpu_seconds()
    asyncio.run(some())
    return (_cpu_seconds() - begun) / 300_000 * 1e9


def run_in_child(script: str, name: str, servers: str, topic: str, size: int, count: int) -> Result | None:
    """Run an idiom in a child process; print the failure and return None if it fails."""
    task = json.dumps({"name": name, "servers": servers, "topic": topic, "size": size, "count": count})
    done = subprocess.run(
        [sys.executable, script, "--child", task], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        print(f"  {name} failed: {(done.stderr or done.stdout).strip()[-400:]}", flush=True)
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    millions = found["messages"] / 1e6
    cpu, wall = found["cpu_s"] / millions, found["wall_s"] / millions
    return Result(cpu, wall, found["resident_mib"], found["await_ns"])


def be_a_child(idioms: Iterable[Idiom], task_json: str) -> int:
    """The child of `run_in_child`, which prints the result."""
    task = json.loads(task_json)
    idiom = next(each for each in idioms if each.name == task["name"])
    meter, before_ns = Meter(), await_ns()
    made = idiom.work(meter, task["servers"], task["topic"], task["size"], task["count"])
    if asyncio.iscoroutine(made):
        run_on(idiom.loop, made)
    speed_ns = (before_ns + await_ns()) / 2
    print(json.dumps({**vars(meter), "resident_mib": _most_resident_mib(), "await_ns": speed_ns}))
    return 0


def _most_resident_mib() -> float:
    # getrusage would return the parent's figure if that is larger.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def run_on(loop: str, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on asyncio's own event loop or on uvloop."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)


@contextmanager
def broker(kind: str) -> Iterator[Contender]:
    """Run the broker that all clients talk to: ours, or Apache Kafka 4.4."""
    start: dict[str, Callable[..., AbstractContextManager[Contender]]] = {
        "ottla": ottla,
        "kafka": apache_kafka,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ottla-bench-") as folder,
        start[kind](Path(folder), _SETTINGS) as it,
    ):
        yield it


@contextmanager
def fresh_topic(servers: str, name: str) -> Iterator[str]:
    """Create a topic and delete it afterwards, to free its disk space."""
    from ottla.admin import Admin  # not above: clients of an earlier tree import this module, too

    async def create() -> None:
        async with Admin(servers) as admin:
            await admin.topics.create(name, partitions=PARTITIONS)

    async def delete() -> None:
        async with Admin(servers) as admin:
            await admin.topics.delete(name)

    asyncio.run(create())
    try:
        yield name
    finally:
        asyncio.run(delete())


def records_in(servers: str, topic: str) -> int:
    """Count the records of a topic."""
    from ottla.admin import LATEST, Admin
    from ottla.protocol.topics import TopicPartition

    async def count() -> int:
        async with Admin(servers) as admin:
            wanted = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
            return sum((await admin.offsets.find(wanted)).values())

    return asyncio.run(count())


def table(
    title: str, idioms: Iterable[Idiom], size: int, results: dict[str, list[Result]], base: str
) -> None:
    """Print medians, ratios to `base` within rounds, and goals if there are any; keep the figures."""
    keep(every for idiom in idioms for every in _figures(title, idiom.name, results.get(idiom.name, [])))
    rows: list[tuple[str, ...]] = []
    for idiom in idioms:
        found = results.get(idiom.name)
        if not found:
            continue
        cpu = statistics.median(each.cpu_s_per_million for each in found)
        wall = statistics.median(each.wall_s_per_million for each in found)
        paired = [theirs.cpu_s_per_million / ours.cpu_s_per_million
                  for ours, theirs in zip(found, results.get(base, []), strict=False)]  # fmt: skip
        ratio = f"{statistics.median(paired):.1f} x" if paired else ""
        judged = _judged(idiom.goal.get(size), found)
        resident = statistics.median(each.resident_mib for each in found)
        rows.append(
            (idiom.name, f"{cpu:.3f}", f"{1 / cpu:.2f}", f"{1 / wall:.2f}", ratio, f"{resident:.0f}", judged)
        )
    speed_ns = statistics.median(each.await_ns for found in results.values() for each in found)
    header = ("", "CPU s/M", "M/s per core", "M/s wall", f"times {base}", "MiB", "goal M/s")
    show(f"{title}; awaiting an empty coroutine takes {speed_ns:.0f} ns", rows, header)


def _figures(title: str, name: str, found: list[Result]) -> list[Figure]:
    return [
        figure(title, "client's CPU per million", "s", name, found, lambda run: run.cpu_s_per_million),
        figure(title, "throughput", "records/s", name, found, lambda run: 1e6 / run.wall_s_per_million),
        figure(title, "memory", "MiB", name, found, lambda run: run.resident_mib),
    ]


def chosen(idioms: Iterable[Idiom], only: Sequence[str]) -> list[Idiom]:
    """Return the idioms whose names have one of the texts in them; all where there is no text."""
    return [idiom for idiom in idioms if not only or any(text in idiom.name for text in only)]


def _judged(goal: float | None, found: list[Result]) -> str:
    if goal is None:
        return ""
    # CPU seconds per million, scaled to the machine of the goals.
    there = statistics.median(each.cpu_s_per_million * GOAL_AWAIT_NS / each.await_ns for each in found)
    return f"{goal:g} {'reached' if 1 / there >= goal else 'missed'} ({1 / there:.1f} there)"
