"""Pages of the console: the first, 10,000 topics, a hundred records; memory with ten clusters; the wheel.

Run `python benchmarks/console_pages.py`, or `nox -s bench -- console_pages`. A real broker, a console in a
process of its own, and requests over HTTP as a browser sends them, the whole page each time. There is no peer
in the run: those come as JVMs and containers. `--quick` has a tenth of the topics and fewer rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from contenders import as_installed, show
from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess, free_port
from ottla.producer import Producer

ROOT: Final = Path(__file__).resolve().parents[1]
BOUND_S: Final = 120.0
START_S: Final = 30.0
CLUSTERS: Final = 10
STALE_S: Final = 3.5
"""Longer than the console shows an answer without another look."""
IDLE_S: Final = 45.0
"""Longer than the console waits between two looks at its clusters."""
RECORD_BYTES: Final = 1_000
_BATCH: Final = 500


class Console:
    """`ottla console` as a process; `get` loads one of its pages, over one connection."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.port = free_port()
        environment = as_installed(folder)
        environment |= {"XDG_STATE_HOME": str(folder), "OTTLA_PROFILES": str(folder / "profiles.toml")}
        listen = ("--listen", f"127.0.0.1:{self.port}", "--history", str(folder / f"{self.port}.sqlite"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla.console", *listen, *options],
            env=environment,
            stdout=subprocess.DEVNULL,
        )
        self._until_it_answers()

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self._wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
                self.get("/health")
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def slowest_health_ms(self, seconds: float) -> float:
        """Ask again and again for a page made of nothing; return the slowest: the loop was held up."""
        deadline, slowest = time.monotonic() + seconds, 0.0
        while time.monotonic() < deadline:
            slowest = max(slowest, self.get("/health")[0])
            time.sleep(0.003)
        return slowest

    def get(self, path: str, *, is_opened: bool = False) -> tuple[float, int]:
        """Load a page; return its milliseconds until the last byte, and its size.

        With `is_opened` it is asked for as a browser opens it: of a cluster that is not known yet in part.
        """
        begun = time.perf_counter()
        self._wire.request("GET", path, headers={"sec-fetch-mode": "navigate"} if is_opened else {})
        answer = self._wire.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return (time.perf_counter() - begun) * 1e3, len(body)

    def resident_mib(self) -> float:
        """The memory of the process."""
        return psutil.Process(self._process.pid).memory_info().rss / 2**20

    def stop(self) -> None:
        """End the process."""
        self._wire.close()
        self._process.terminate()
        self._process.wait(30)


async def fill(servers: str, topics: int, records: int) -> None:
    """Create topics, and records of one of them."""
    many = AdminClient({"bootstrap.servers": servers})
    for first in range(0, topics, _BATCH):
        batch = [NewTopic(f"topic-{number:05}", 1, 1) for number in range(first, min(first + _BATCH, topics))]
        for created in many.create_topics(batch, request_timeout=BOUND_S).values():
            created.result(BOUND_S)
    async with Admin(servers) as admin:
        await admin.topics.create("records", partitions=6)
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(records):
            await producer.send("records", b'{"n":%d,"text":"%s"}' % (number, b"x" * RECORD_BYTES))


def figures(console: Console, path: str, rounds: int, *, stale: bool = False) -> tuple[float, float, int]:
    """Return the median and the slowest time of a page, and its bytes; `stale` waits before each."""
    times = []
    size = 0
    for _ in range(rounds):
        if stale:
            time.sleep(STALE_S)
        taken_ms, size = console.get(path)
        times.append(taken_ms)
    return median(times), max(times), size


def pages(servers: str, folder: Path, rounds: int) -> list[tuple[str, ...]]:
    """Measure pages of a console that has just started, and again while its answers are fresh, and old."""
    wanted = {
        "first page": ("/c/local/", 150), "topic list": ("/c/local/topics", 300),
        "topics found": ("/c/local/topics?q=07&order=size", 300),
        "a hundred records": ("/c/local/topics/records/records?count=100", 200),
    }  # fmt: skip
    rows = []
    for name, (path, bound_ms) in wanted.items():
        cold = []
        for _ in range(1 if rounds < 20 else 3):
            console = Console(folder, "--bootstrap-server", servers)
            cold.append(console.get(path)[0])
            fresh, slowest, size = figures(console, path, rounds)
            stale, slowest_stale, _ = figures(console, path, 2, stale=True)
            console.stop()
        cells = (median(cold), fresh, slowest, stale, slowest_stale)
        print(f"{name}: {', '.join(f'{cell:.0f} ms' for cell in cells)}", flush=True)
        rows.append((name, *(f"{cell:.0f}" for cell in cells), f"{size / 1024:.0f}", str(bound_ms)))
    return rows


def first_paints(servers: str, folder: Path, rounds: int) -> tuple[float, float]:
    """Return the median and the slowest time until a browser has a page of a console that just started."""
    times = []
    for _ in range(rounds):
        console = Console(folder, "--bootstrap-server", servers)
        times.append(console.get("/c/local/", is_opened=True)[0])
        console.stop()
    return median(times), max(times)


def held_up_ms(servers: str, folder: Path) -> float:
    """Return how long the loop is held up at most over two looks of the console at its cluster."""
    console = Console(folder, "--bootstrap-server", servers)
    console.get("/c/local/")
    found = console.slowest_health_ms(IDLE_S)
    console.stop()
    return found


def idle_mib(servers: str, folder: Path) -> float:
    """Return the memory of a console that watches ten clusters, each shown once, after a look at all."""
    of_broker = f'bootstrap_servers = "{servers}"'
    (folder / "profiles.toml").write_text("".join(f"[c{n}]\n{of_broker}\n" for n in range(CLUSTERS)))
    console = Console(folder)
    for number in range(CLUSTERS):
        console.get(f"/c/c{number}/")
    console.get("/")
    time.sleep(IDLE_S)
    found = console.resident_mib()
    console.stop()
    return found


def wheel_mb(folder: Path) -> float:
    """Return the size of the wheel."""
    from hatchling.builders.wheel import WheelBuilder

    builder = WheelBuilder(str(ROOT / "packages" / "console"))
    (path,) = builder.build(directory=str(folder), versions=["standard"])
    return Path(path).stat().st_size / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick: bool = parser.parse_args().quick
    topics, records, rounds = (1_000, 5_000, 10) if quick else (10_000, 20_000, 30)
    machine = platform.processor() or platform.machine()
    print(f"{os.cpu_count()} cores, {machine}, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with BrokerProcess(folder / "few") as few:
            asyncio.run(fill(few.bootstrap_servers, 0, 1))
            mib = idle_mib(few.bootstrap_servers, folder)
        (folder / "profiles.toml").unlink()
        with BrokerProcess(folder / "many") as many:
            asyncio.run(fill(many.bootstrap_servers, topics, records))
            rows = pages(many.bootstrap_servers, folder, rounds)
            painted, slowest = first_paints(many.bootstrap_servers, folder, 3 if quick else 9)
            held = held_up_ms(many.bootstrap_servers, folder)
        header = ("", "cold ms", "fresh ms", "slowest", "stale ms", "slowest", "KiB", "at most ms")
        show(f"pages of a broker with {topics} topics", rows, header)
        sizes = [
            ("ms until a browser has the first page of a new console", f"{painted:.0f}", "150"),
            ("ms of the slowest of these", f"{slowest:.0f}", ""),
            (f"ms for /health at most, {topics} topics", f"{held:.0f}", ""),
            (f"MiB idle with {CLUSTERS} clusters", f"{mib:.0f}", "120"),
            ("MB of the wheel", f"{wheel_mb(folder):.2f}", "3"),
        ]
        show("process and wheel", sizes, ("", "", "at most"))


if __name__ == "__main__":
    main()
