"""The scenarios of `streams_peers`, the applications that run them, and one run of one of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from ottla.admin import Admin
from stream_apps.confluent import java_command
from stream_apps.load import Load, fill, send_steadily
from stream_apps.meter import WARM_UP_LIMIT_S, Task

HERE = Path(__file__).resolve().parent
PARTITIONS = 8
KEYS = 1000
START_LIMIT_S = 60.0
METADATA_EVERY_S = 0.25


@dataclass(frozen=True)
class Application:
    """One way to use one library; `peers` and `java` have environments of their own.

    `is_base` is whether it runs only to be subtracted from others.
    """

    name: str
    program: str
    style: str = ""
    environment: str = "ours"
    is_base: bool = False


APPLICATIONS = (
    Application("ottla.streams", "ottla_app"),
    Application("ottla consumer, getmany", "ottla_loop", is_base=True),
    Application("aiokafka, one by one", "aiokafka_loop", "one by one"),
    Application("aiokafka, getmany", "aiokafka_loop", "getmany", is_base=True),
    Application("aiokafka, gather per poll", "aiokafka_loop", "gather"),
    Application("aiokafka, gather by key", "aiokafka_loop", "gather by key"),
    Application("faust-streaming", "faust_app", "one actor", "peers"),
    Application("faust-streaming, concurrency=1000", "faust_app", "many actors", "peers"),
    Application("quixstreams", "quixstreams_app", "", "peers"),
    Application("FastStream", "faststream_app", "one worker", "peers"),
    Application("FastStream, max_workers=1000", "faststream_app", "many workers", "peers"),
    Application("FastStream, max_workers=8, ACK", "faststream_app", "partitions", "peers"),
    Application("Confluent Parallel Consumer", "ParallelConsumerLoad", "", "java"),
)
# The loops whose cost per record is subtracted from that of the libraries on top of the same client.
CLIENT_LOOPS = {"ottla.streams": "ottla consumer, getmany"} | {
    each.name: "aiokafka, getmany"
    for each in APPLICATIONS
    if each.program in ("aiokafka_loop", "faust_app", "faststream_app") and not each.is_base
}


@dataclass(frozen=True)
class Scenario:
    """A load and how it is measured: from a full topic, or with records sent at a steady rate."""

    name: str
    title: str
    load: Load
    total: int
    warm_up: int
    limit_s: float
    per_s: float = 0.0
    # The tasks of a bare loop of `asyncio.sleep` run beside it.
    has_sleep_loop: bool = False

    @property
    def is_noop(self) -> bool:
        return not self.load.handler_us


SCENARIOS = (
    Scenario("noop", "No-op handler, 100 B, 1,000 keys", Load(KEYS, 0), 1_000_000, 100_000, 4),
    Scenario(
        "100ms", "Handlers of 100 ms, 1,000 keys; ideal 10,000 records/s", Load(KEYS, 100_000),
        50_000, 10_000, 5,
    ),
    Scenario(
        "10ms", "Handlers of 10 ms, 1,000 keys; ideal 100,000 records/s", Load(KEYS, 10_000),
        350_000, 50_000, 4, has_sleep_loop=True,
    ),
    Scenario(
        "steady", "2,000 records a second, handlers of 10 ms, 1,000 keys", Load(KEYS, 10_000, first=KEYS),
        KEYS + 12_000, KEYS, 7, per_s=2000,
    ),
    Scenario(
        "uneven", "1,000 records a second, handlers of 10 ms, one of a hundred 2 s, 1,000 keys",
        Load(KEYS, 10_000, 2_000_000, 100, first=KEYS), KEYS + 6_000, KEYS, 10, per_s=1000,
    ),
)  # fmt: skip


def quick(scenario: Scenario) -> Scenario:
    """Return a scenario of a second or two, which shows that everything runs, not how fast."""
    first, measured = scenario.load.first, scenario.total - scenario.load.first
    warm_up = scenario.warm_up if first else scenario.warm_up // 10
    return replace(scenario, total=first + measured // 10, warm_up=warm_up, limit_s=min(3, scenario.limit_s))


@dataclass(frozen=True)
class Result:
    """One run: what `meter.py` wrote, and the metadata of commits that was seen meanwhile."""

    records: int
    all_handled: bool
    wall_s: float
    cpu_s: float
    peak_mib: float
    disordered: int
    p50_ms: float
    p99_ms: float
    metadata_bytes: int = 0

    @property
    def per_s(self) -> float:
        return self.records / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU microseconds per record."""
        return self.cpu_s / max(1, self.records) * 1e6


class Failed(RuntimeError):
    """An application ended without a result; the message holds the end of its output."""


@dataclass(frozen=True)
class Runs:
    """Runs applications against one broker; `peers_python` is the environment of other projects."""

    servers: str
    peers_python: str
    concurrency: int = KEYS

    @asynccontextmanager
    async def topic(self, name: str, load: Load, total: int) -> AsyncIterator[str]:
        """Create and fill a topic, and delete it afterwards."""
        async with Admin(self.servers) as admin:
            await admin.topics.create(name, partitions=PARTITIONS)
            await fill(self.servers, name, load, total)
            try:
                yield name
            finally:
                await admin.topics.delete(name)

    async def one(self, application: Application, scenario: Scenario, topic: str, group: str) -> Result:
        """Run an application in its own process until it has a result. Raises Failed."""
        if not scenario.per_s:
            return await self._measured(application, scenario, topic, group)
        async with self.topic(group, scenario.load, scenario.load.first) as own:
            return await self._measured(application, scenario, own, group)

    async def _measured(self, application: Application, scenario: Scenario, topic: str, group: str) -> Result:
        with tempfile.TemporaryDirectory(prefix="ottla-streams-") as folder:
            task = self._task(application, scenario, topic, group, folder)
            with _output_file(folder) as log:
                process = await asyncio.create_subprocess_exec(
                    *self._command(application, task), cwd=HERE, env=_environment(application),
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            try:
                metadata_bytes = await self._watched(process, scenario, task)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            return _result(Path(folder), metadata_bytes, process.returncode)

    def _task(
        self, application: Application, scenario: Scenario, topic: str, group: str, folder: str
    ) -> Task:
        return Task(
            application.style, self.servers, topic, group, scenario.is_noop, scenario.warm_up,
            scenario.total, scenario.limit_s, self.concurrency, folder,
        )  # fmt: skip

    def _command(self, application: Application, task: Task) -> list[str]:
        if application.environment == "java":
            given = (task.servers, task.topic, task.group, str(task.is_noop), task.warm_up, task.total,
                     task.limit_s, task.concurrency, task.folder)  # fmt: skip
            return java_command(application.program, *map(str, given))
        python = self.peers_python if application.environment == "peers" else sys.executable
        return [python, "-m", f"stream_apps.{application.program}", json.dumps(vars(task))]

    async def _watched(self, process: asyncio.subprocess.Process, scenario: Scenario, task: Task) -> int:
        """Send records if the scenario says so, until the application ends; return what its commits held."""
        limit_s = START_LIMIT_S + WARM_UP_LIMIT_S + scenario.limit_s
        if not scenario.per_s:
            await asyncio.wait_for(process.wait(), limit_s)
            return 0
        await _warm(process, Path(task.folder))
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._largest_metadata(process, task))
            sending = group.create_task(
                send_steadily(self.servers, task.topic, scenario.load, scenario.total, scenario.per_s)
            )
            await asyncio.wait_for(process.wait(), limit_s)
            sending.cancel()
        return watch.result()

    async def _largest_metadata(self, process: asyncio.subprocess.Process, task: Task) -> int:
        """Return the longest metadata of a partition's commit that was seen while the process ran."""
        longest = 0
        async with Admin(self.servers) as admin:
            while process.returncode is None:
                committed = await admin.groups.committed(task.group)
                longest = max([longest, *(len(metadata) for _, metadata in committed.values())])
                await asyncio.sleep(METADATA_EVERY_S)
        return longest


async def _warm(process: asyncio.subprocess.Process, folder: Path) -> None:
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            if (folder / "warm").exists() or process.returncode is not None:
                return
            await asyncio.sleep(0.05)


def _output_file(folder: str) -> IO[bytes]:
    return Path(folder, "output").open("wb")


def _environment(application: Application) -> dict[str, str]:
    """Other projects are imported from their own environment only."""
    hidden = {"PYTHONPATH"} if application.environment == "peers" else set()
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _result(folder: Path, metadata_bytes: int, exit_code: int | None) -> Result:
    written = folder / "result.json"
    if not written.exists():
        output = (folder / "output").read_text(errors="replace").strip()
        raise Failed(f"ended with {exit_code}: {output[-1500:]}")
    found: dict[str, Any] = json.loads(written.read_text())
    return Result(**found, metadata_bytes=metadata_bytes)
