"""Broker start until the first acknowledged record, and idle memory.

Run `python benchmarks/startup.py`. Each round starts a complete node with its coordinator on an empty
directory; the smallest figure of all rounds is the broker's cost, the rest is noise of the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

from confluent_kafka import Producer

from contenders import Contender, as_installed, show

_IDLE_S = 3.0
_DEADLINE_S = 30.0
_TITLES = ("", "ready ms", "first record ms", "CPU ms ready", "CPU ms first record", "RSS MiB idle")


@dataclass(frozen=True)
class Start:
    """The figures of one start."""

    ready_ms: float
    first_record_ms: float
    cpu_ready_ms: float
    cpu_first_record_ms: float
    idle_mib: float


@contextmanager
def starting(folder: Path, flags: list[str]) -> Iterator[tuple[Contender, float]]:
    """Yield a broker that has just printed that it is ready, and the start time of its process."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "ottla.broker", "start", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(folder), "--ready-fd", str(write_end), *flags]
    begun = time.perf_counter()
    environment = as_installed(folder.parent)
    process = subprocess.Popen(command, env=environment, pass_fds=(write_end,), stdout=subprocess.DEVNULL)
    os.close(write_end)
    try:
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError("the broker did not start")
        yield Contender("ottla", line.split()[-1], process.pid, folder), begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_DEADLINE_S)


def measure(folder: Path, flags: list[str]) -> Start:
    """Start a broker, produce one record to a new topic, and leave it idle for a while."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as data_dir,
        starting(Path(data_dir), flags) as (broker, begun),
    ):
        ready, cpu_ready = time.perf_counter(), broker.cpu_seconds()
        produce_one(broker.bootstrap_servers)
        acknowledged, cpu = time.perf_counter(), broker.cpu_seconds()
        time.sleep(_IDLE_S)
        return Start(
            (ready - begun) * 1e3,
            (acknowledged - begun) * 1e3,
            cpu_ready * 1e3,
            cpu * 1e3,
            broker.resident_mib(),
        )


def produce_one(bootstrap_servers: str) -> None:
    """Wait until one record is acknowledged by all replicas."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0})
    outcome: list[object] = []
    producer.produce("startup", b"first", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(_DEADLINE_S)
    if outcome != [None]:
        raise RuntimeError(f"the first record was not acknowledged: {outcome}")


def help_ms() -> float:
    """CPU of `ottla --help`."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "from ottla.client.cli import main; main(['--help'])"],
                   stdout=subprocess.DEVNULL, check=True)  # fmt: skip
    after = os.times()
    return (after.children_user + after.children_system - before.children_user - before.children_system) * 1e3


def main() -> None:
    """Measure with each available event loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    loops = ["--no-uvloop"] + ["--uvloop"] * (importlib.util.find_spec("uvloop") is not None)
    rows = []
    with tempfile.TemporaryDirectory(prefix="ottla-startup-") as folder:
        for loop in loops:
            starts = [astuple(measure(Path(folder), [loop])) for _ in range(rounds)]
            rows.append((loop.strip("-"), *(f"{min(column):.0f}" for column in zip(*starts, strict=True))))
    show(f"Smallest of {rounds} starts", rows, _TITLES)
    print(f"\n  ottla --help: {min(help_ms() for _ in range(rounds)):.0f} ms CPU")


if __name__ == "__main__":
    main()
