"""Run drivers that copy a topic, kill them, and count the copies."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ottla.consumer import Consumer
from ottla.protocol.topics import TopicPartition

DRIVER = Path(__file__).with_name("topic_copying_driver.py")
LAST_RUN_TIMEOUT_S = 500
STARTS = 4
"""How often a driver may fail by itself: Spark waits only ten seconds for a Python worker."""


@dataclass
class Copying:
    """A query from one topic into another, over the lives of many drivers."""

    servers: str
    source: str
    target: str
    folder: Path
    more: dict[str, Any] = field(default_factory=dict)
    life: int = 0

    def start(self) -> subprocess.Popen[str]:
        """Start a driver in its own process group."""
        self.life += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        given = {
            "servers": self.servers,
            "source": self.source,
            "target": self.target,
            "checkpoint": str(self.folder / "checkpoint"),
            "folder": str(self.folder / "spark"),
            **self.more,
        }
        environment = {**os.environ, "PYTHONPATH": str(DRIVER.parent.parent)}
        with (self.folder / f"driver-{self.life}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(given)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env=environment,
            )

    def run_and_kill(self, chance: random.Random, *, workers_too: bool) -> list[int]:
        """Kill a driver at a random time after its first batch; return the batches reported as done."""
        with self._under_way() as (driver, batches):
            # A random time: a batch takes some tenths of a second, its transaction some hundredths.
            time.sleep(chance.uniform(0, 1.5))
            kill(driver, workers_too=workers_too)
            return batches + [int(line) for line in driver.stdout or () if line.strip().isdigit()]

    def run_and_kill_early(self, chance: random.Random, *, workers_too: bool) -> None:
        """Kill a new query's driver at a random time after planning; `has_begun` tells if it committed."""
        for _ in range(STARTS):
            with self.start() as driver:
                try:
                    if self._planned(driver):
                        # Random, too: a transaction of the batch may be open, complete, or not begun yet.
                        time.sleep(chance.uniform(0, 0.6))
                        kill(driver, workers_too=workers_too)
                        return
                finally:
                    kill(driver, workers_too=True)
        raise AssertionError(f"driver {self.life} ended before its first batch:\n{self.last_words()}")

    @property
    def has_begun(self) -> bool:
        """Whether the first batch is done."""
        return self._logged("commits")

    def _planned(self, driver: subprocess.Popen[str]) -> bool:
        """Wait until the first batch is in the checkpoint; return False if the driver ended before."""
        until = time.monotonic() + LAST_RUN_TIMEOUT_S
        while not self._logged("offsets"):
            if driver.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _logged(self, what: str) -> bool:
        return (self.folder / "checkpoint" / what / "0").exists()

    def run_through(self, harm: Callable[[subprocess.Popen[str]], None], times: int) -> int:
        """Cause a failure after each of the first batches; return how many failures were caused.

        The driver ends when everything is copied, or when it gives up.
        """
        done = 0
        with self._under_way() as (driver, _):
            while done < times and driver.poll() is None:
                harm(driver)
                done += 1
                self._next_batch(driver)
            driver.communicate(timeout=LAST_RUN_TIMEOUT_S)
        return done

    def run(self) -> None:
        """Copy the rest with a driver."""
        for _ in range(STARTS):
            with self.start() as driver:
                try:
                    driver.communicate(timeout=LAST_RUN_TIMEOUT_S)
                finally:
                    kill(driver, workers_too=True)
            if driver.returncode == 0:
                return
        raise AssertionError(self.last_words())

    @contextmanager
    def _under_way(self) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
        """Yield a driver whose first batch is done, and that batch; kill all its processes afterwards."""
        for _ in range(STARTS):
            with self.start() as driver:
                try:
                    if batch := self._next_batch(driver):
                        yield driver, batch
                        return
                finally:
                    kill(driver, workers_too=True)
        raise AssertionError(f"driver {self.life} ended before its first batch:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of the last driver's output."""
        return (self.folder / f"driver-{self.life}.log").read_text()[-6_000:]

    def _next_batch(self, driver: subprocess.Popen[str]) -> list[int]:
        """Wait until the driver reports a batch; return None if it ended."""
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.strip().isdigit():
                return [int(line)]
        return []


def kill_python_workers(driver: subprocess.Popen[str]) -> None:
    """Kill Spark's Python workers, but not the driver, its JVM and their parent."""
    for each in psutil.Process(driver.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if each.name() != "java" and not each.children():
                each.kill()


def kill(driver: subprocess.Popen[str], *, workers_too: bool) -> None:
    """Kill a driver and its JVM at once, and its Python workers too, which otherwise notice it later."""
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(driver.pid).children(recursive=True)
        doomed = [each for each in family if workers_too or each.name() == "java"]
        for each in doomed:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait(30)


async def committed(servers: str, topic: str, partitions: int) -> Counter[str]:
    """Return how often each value is in a topic, for readers of committed records."""
    places = [TopicPartition(topic, number) for number in range(partitions)]
    found: Counter[str] = Counter()
    async with Consumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        while True:
            batch = await consumer.fetch_arrow(timeout_ms=10_000, columns=["value"], until=ends)
            if not batch.num_rows:
                break
            found.update(value.decode() for value in batch.column("value").to_pylist())
        assert [await consumer.position(each) for each in places] == [ends[each] for each in places]
    return found


def arrived(servers: str, topic: str, partitions: int) -> Counter[str]:
    """Return `committed`, for tests that are not asynchronous."""
    return asyncio.run(committed(servers, topic, partitions))
