"""Broker start until the first acknowledged record, and idle memory, without and with `--secure`.

Run `python benchmarks/startup.py`. Each round starts a complete node with its coordinator on an empty
directory; the smallest figure of all rounds is the broker's cost, the rest is noise of the machine. With
`--secure` the first start makes certificates and users, and later ones read them. The last table is the
fixture `ottla_secure_broker` of pytest: the first one of a process, with its imports, and the next.
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

SECURE = "--secure"
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
    environment = {**as_installed(folder.parent), "OTTLA_PROFILES": str(folder.parent / "profiles.toml")}
    begun = time.perf_counter()
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


def measure(data_dir: Path, flags: list[str]) -> Start:
    """Start a broker, produce one record, and leave it idle for a while."""
    with starting(data_dir, flags) as (broker, begun):
        ready, cpu_ready = time.perf_counter(), broker.cpu_seconds()
        produce_one(broker.bootstrap_servers, data_dir if SECURE in flags else None)
        acknowledged, cpu = time.perf_counter(), broker.cpu_seconds()
        time.sleep(_IDLE_S)
        return Start(
            (ready - begun) * 1e3,
            (acknowledged - begun) * 1e3,
            cpu_ready * 1e3,
            cpu * 1e3,
            broker.resident_mib(),
        )


def rounds_of(folder: Path, flags: list[str], rounds: int) -> dict[str, list[Start]]:
    """Start on empty directories, and with `--secure` once more on each."""
    found: dict[str, list[Start]] = {}
    names = (f"{SECURE}, first", f"{SECURE}, later") if SECURE in flags else ("",)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as data_dir:
            for name in names:
                found.setdefault(name, []).append(measure(Path(data_dir), flags))
    return found


def produce_one(bootstrap_servers: str, secured: Path | None = None) -> None:
    """Wait until one record is acknowledged by all replicas; log in with what a data directory holds."""
    settings = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0}
    if secured is not None:
        settings |= {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secured / "secure" / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": (secured / "secure" / "admin.password").read_text().strip(),
        }
    producer = Producer(settings)
    outcome: list[object] = []
    producer.produce("startup", b"first", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(_DEADLINE_S)
    if outcome != [None]:
        raise RuntimeError(f"the first record was not acknowledged: {outcome}")


def fixtures_ms(folder: Path) -> list[float]:
    """Return how long the first and the second secured broker of a process take, each with its CPU time."""
    done = subprocess.run(
        [sys.executable, __file__, "--fixtures", tempfile.mkdtemp(dir=folder)],
        env=as_installed(folder), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [float(text) for text in done.stdout.split()]


def print_fixtures(folder: Path) -> None:
    """Start a secured broker twice, as the fixture of pytest does."""
    for name in ("first", "second"):
        begun, cpu = time.perf_counter(), time.process_time()
        from ottla.broker.testing import SecureBroker

        users, acls = {"anna": "secret"}, [("anna", "WRITE", "topic", "orders")]
        with SecureBroker(folder / name, users=users, acls=acls):
            print((time.perf_counter() - begun) * 1e3, (time.process_time() - cpu) * 1e3)


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
    parser.add_argument("--fixtures", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fixtures:
        print_fixtures(options.fixtures)
        return
    rounds, rows = options.rounds, []
    loops = ["--no-uvloop"] + ["--uvloop"] * (importlib.util.find_spec("uvloop") is not None)
    with tempfile.TemporaryDirectory(prefix="ottla-startup-") as name:
        folder = Path(name)
        for flags in ([loop, *more] for loop in loops for more in ([], [SECURE])):
            for step, starts in rounds_of(folder, flags, rounds).items():
                columns = zip(*map(astuple, starts), strict=True)
                rows.append((f"{flags[0]} {step}".strip(), *(f"{min(column):.0f}" for column in columns)))
        show(f"Smallest of {rounds} starts", rows, _TITLES)
        fixtures = [
            f"{min(column):.0f}" for column in zip(*(fixtures_ms(folder) for _ in range(rounds)), strict=True)
        ]
    titles = ("", "first", "CPU", "second", "CPU")
    show("ottla_secure_broker, smallest", [("ms until it serves", *fixtures)], titles)
    print(f"\n  ottla --help: {min(help_ms() for _ in range(rounds)):.0f} ms CPU")


if __name__ == "__main__":
    main()
