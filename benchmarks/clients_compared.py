"""How clients are compared: each in a process of its own, in turns, by the CPU seconds they take.

CPU time hardly depends on what else the machine does, wall time does; so a figure is the median over rounds
of the client process's CPU seconds per million messages, and ratios are medians of ratios within a round.
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
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contenders import Contender, apache_kafka, ottla, show
from ottla.client.admin import Admin

PARTITIONS = 8
_SETTINGS = {"log.segment.delete.delay.ms": "200", "log.retention.check.interval.ms": "86400000"}


@dataclass(frozen=True)
class Idiom:
    """One way to use one client; `share` is how much of the messages it gets: the slow ones get fewer."""

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
        """Begin; what came before, connecting and warming up, does not count."""
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()

    def stop(self, messages: int) -> None:
        """End, after this many messages."""
        self.cpu_s, self.wall_s = _cpu_seconds() - self._cpu, time.perf_counter() - self._wall
        self.messages = messages


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass
class Result:
    """What one run of an idiom took."""

    cpu_s_per_million: float
    wall_s_per_million: float
    resident_mib: float


def run_in_child(script: str, name: str, servers: str, topic: str, size: int, count: int) -> Result:
    """Run an idiom in a process of its own; raises with its words when it fails."""
    task = json.dumps({"name": name, "servers": servers, "topic": topic, "size": size, "count": count})
    done = subprocess.run(
        [sys.executable, script, "--child", task], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    millions = found["messages"] / 1e6
    return Result(found["cpu_s"] / millions, found["wall_s"] / millions, found["resident_mib"])


def be_a_child(idioms: Iterable[Idiom], task_json: str) -> int:
    """Do what `run_in_child` asks for, and print what it took."""
    task = json.loads(task_json)
    idiom = next(each for each in idioms if each.name == task["name"])
    meter = Meter()
    made = idiom.work(meter, task["servers"], task["topic"], task["size"], task["count"])
    if asyncio.iscoroutine(made):
        run_on(idiom.loop, made)
    resident_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**vars(meter), "resident_mib": resident_mib}))
    return 0


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
    """Run the broker that all clients talk to: ours, or Apache Kafka 3.9."""
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
    """Make a topic and delete it afterwards: what has been measured need not stay on disk."""

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
    """Count what is in a topic."""
    from ottla.client.admin import LATEST
    from ottla.protocol.topics import TopicPartition

    async def count() -> int:
        async with Admin(servers) as admin:
            wanted = {TopicPartition(topic, index): LATEST for index in range(PARTITIONS)}
            return sum((await admin.offsets.find(wanted)).values())

    return asyncio.run(count())


def table(
    title: str, idioms: Iterable[Idiom], size: int, results: dict[str, list[Result]], base: str
) -> None:
    """Print medians, ratios to `base` within rounds, and goals where there are some."""
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
        goal = idiom.goal.get(size)
        judged = "" if goal is None else f"{goal:g} {'reached' if 1 / cpu >= goal else 'missed'}"
        resident = statistics.median(each.resident_mib for each in found)
        rows.append(
            (idiom.name, f"{cpu:.3f}", f"{1 / cpu:.2f}", f"{1 / wall:.2f}", ratio, f"{resident:.0f}", judged)
        )
    header = ("", "CPU s/M", "M/s per core", "M/s wall", f"as fast as {base}", "MiB", "goal M/s")
    show(title, rows, header)
