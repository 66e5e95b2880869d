"""Pipelines run by the `ottla` command in their own processes, for tests that kill them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psutil

from ottla.broker.testing import BrokerProcess
from ottla.pipeline.jobs.logs import Logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.run import Run

LIMIT_S = 600.0
"""The general timeout: Spark starts in ten seconds, or in two minutes on a busy machine."""
SPARK = """
[spark]
master = "local[2,4]"
sql.shuffle.partitions = 2
driver.memory = "512m"
driver.extraJavaOptions = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
"""Spark settings of the tests: small, for a quick start."""


class Pipeline:
    """A declared pipeline, run again and again."""

    def __init__(self, file: Path, checkpoint: Path) -> None:
        self.file = file
        self.checkpoint = checkpoint
        self.output = ""
        """The output of the last `once`."""
        self._running: subprocess.Popen[str] | None = None

    def once(self) -> dict[str, Any]:
        """Run it with --once, and return its status."""
        done = subprocess.run(
            [*_OTTLA, "run", "--once", str(self.file)],
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        self.output = done.stdout
        return self.status()

    def start(self) -> None:
        """Start it without --once."""
        with (self.file.parent / f"{self.file.stem}.log").open("a") as log:
            self._running = subprocess.Popen(
                [*_OTTLA, "run", str(self.file)], stdout=log, stderr=log, text=True, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the driver: Python and Java, at once."""
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()

    def stop(self) -> int:
        """Send SIGTERM, and return its exit code."""
        assert self._running is not None
        self._running.terminate()
        return self._running.wait(LIMIT_S)

    def stop_all(self) -> int:
        """Send SIGTERM to its whole process group, Java included, and return its exit code."""
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGTERM)
        return self._running.wait(LIMIT_S)

    def interrupt(self) -> int:
        """Send SIGINT to all its processes, as Ctrl+C in a terminal does; return its exit code."""
        assert self._running is not None
        os.killpg(self._running.pid, signal.SIGINT)
        return self._running.wait(LIMIT_S)

    def failed(self) -> str:
        """Wait until it ends by itself, and return its output. Fails if it ends with success."""
        assert self._running is not None
        assert self._running.wait(LIMIT_S) == 1, self.said()
        return self.said()

    def kill_worker_and(self, broker: BrokerProcess, send: Callable[[], object], query: str = "main") -> None:
        """Kill a worker and the broker during work: `send` provides records, and a batch is awaited."""
        done = self.committed(query)
        send()
        self.until(lambda: self.committed(query) > done)
        self.until(self.kill_worker)
        broker.kill()
        broker.start()

    def kill_java(self) -> int:
        """Kill only Spark's Java, and return the exit code of the pipeline."""
        assert self._running is not None
        family = psutil.Process(self._running.pid).children(recursive=True)
        for java in [
            each for each in family if _is_java(each)
        ]:  # found before the kill, because others end with it
            java.kill()
        return self._running.wait(LIMIT_S)

    def said(self) -> str:
        """Return the output of the process that `start` started."""
        return (self.file.parent / f"{self.file.stem}.log").read_text()

    def kill_worker(self) -> bool:
        """Kill a Python worker of Spark; return False if there is none."""
        assert self._running is not None
        family = psutil.Process(self._running.pid).children(recursive=True)
        workers = [each for each in family if _is_worker(each)]
        if workers:
            random.choice(workers).kill()
        return bool(workers)

    def planned(self, query: str = "main") -> int:
        """Return how many batches were planned."""
        return _numbered(self.checkpoint / "queries" / query / "offsets")

    def committed(self, query: str = "main") -> int:
        """Return how many batches are committed."""
        return _numbered(self.checkpoint / "queries" / query / "commits")

    def status(self) -> dict[str, Any]:
        """Return the status of the pipeline."""
        found: dict[str, Any] = json.loads((self.checkpoint / "status.json").read_text())
        return found

    def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until a condition holds; fails if the pipeline ends before."""
        assert self._running is not None
        end = time.monotonic() + LIMIT_S
        while not is_so():
            assert self._running.poll() is None, self.said()
            if time.monotonic() > end:
                self.kill()
                raise AssertionError("the pipeline does not get on")
            time.sleep(0.02)


_OTTLA = (sys.executable, "-c", "from ottla.client.cli import main; main()", "pipeline")


def failure_line(said: str) -> str:
    """Return the line with which a run reports its failure. Fails if Spark or a traceback says more."""
    assert "Traceback" not in said, said
    assert " ERROR " not in said, said
    [line] = [each for each in said.splitlines() if each.startswith("Error: ")]
    return line


class FailingLogs(Logs):
    """Fails after its second batch is written, including dead letters, and before Spark commits it."""

    kind: Literal["logs"]

    def _write(self, run: Run, parsed: DataFrame, batch_id: int) -> dict[str, int]:
        counts = super()._write(run, parsed, batch_id)
        if batch_id == 1:
            raise OSError("the power is gone")
        return counts


def _is_java(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.NoSuchProcess:
        return False


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in " ".join(process.cmdline()) and bool(process.parent())
    except psutil.Error:
        return False


def _numbered(folder: Path) -> int:
    return sum(each.name.isdigit() for each in folder.iterdir()) if folder.exists() else 0
