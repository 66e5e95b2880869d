"""The compared brokers, started in the same way, and readings of their cost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from ottla.broker.testing import BrokerProcess
from peers.maven import missing_tools

KAFKA = "kafka 4.4"
KAFKA_3 = "kafka 3.9"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SETTINGS = {"num.partitions": "1", "log.retention.check.interval.ms": "86400000"}


@dataclass(frozen=True)
class Contender:
    """One running broker."""

    name: str
    bootstrap_servers: str
    pid: int
    data_dir: Path
    started_in_s: float = 0.0
    """How long it took until it served."""

    @property
    def port(self) -> int:
        return int(self.bootstrap_servers.rsplit(":", 1)[1])

    def cpu_seconds(self) -> float:
        """CPU time of the process so far, user and system, all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def resident_mib(self) -> float:
        """Resident memory of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS in /proc")


def as_installed(folder: Path) -> dict[str, str]:
    """Return an environment in which modules are compiled once, into `folder`, as pip does it.

    A source tree under PYTHONDONTWRITEBYTECODE is compiled at every start, which costs three times the start.
    """
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


@contextmanager
def ottla(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Contender]:
    """An Ottla broker on its embedded coordinator."""
    begun = time.perf_counter()
    with BrokerProcess(folder / "ottla", {**_SETTINGS, **(settings or {})}) as broker:
        took_s = time.perf_counter() - begun
        yield Contender("ottla", broker.bootstrap_servers, broker.pid, broker.data_dir, took_s)


@contextmanager
def apache_kafka(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Contender]:
    """Apache Kafka 4.4, one node that is broker and controller; its log directory is formatted before."""
    # The clients of an earlier tree, which `two_trees.py` starts, lack what the peers' module imports.
    from peers.kraft_kafka import KraftKafka

    kafka = KraftKafka(folder / "kafka", {**_SETTINGS, **(settings or {})}, heap="1g")
    kafka.format()
    begun = time.perf_counter()
    with kafka as broker:
        took_s = time.perf_counter() - begun
        yield Contender(KAFKA, broker.bootstrap_servers, broker.pid, broker.data_dir / "data", took_s)


@contextmanager
def apache_kafka_3(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Contender]:
    """Apache Kafka 3.9 with its ZooKeeper, which runs before the clock starts."""
    from peers.apache_kafka import ApacheKafka, ZooKeeper

    place = folder / "kafka-3"
    with ZooKeeper(place / "zookeeper") as zookeeper:
        kafka = ApacheKafka(place, {**_SETTINGS, **(settings or {})}, zookeeper=zookeeper)
        begun = time.perf_counter()
        with kafka as broker:
            took_s = time.perf_counter() - begun
            yield Contender(KAFKA_3, broker.bootstrap_servers, broker.pid, place / "data", took_s)


def kafka_is_here() -> bool:
    """Return whether Apache Kafka can be run; print what is missing otherwise."""
    missing = missing_tools()
    if missing:
        print(f"  without Apache Kafka: {missing}")
    return missing is None


def quiet(contender: Contender, within_s: float = 15) -> None:
    """Return once the broker has used almost no CPU for a second (a JVM compiles for a while)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        before = contender.cpu_seconds()
        time.sleep(1)
        if contender.cpu_seconds() - before < 0.05:
            return


def touch_free_memory(part: float = 0.6) -> None:
    """Use a part of the free memory once: a virtual machine gets its pages from the host at the first touch.

    Whoever writes first to fresh page cache otherwise pays for that: a write was seen to cost 0.5 ms per MB
    there, and 0.2 on pages that had been used.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    subprocess.run(
        [sys.executable, "-c", f"bytearray(b'x') * {int(available * part)}"], timeout=300, check=True
    )


def show(title: str, rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """Print a table with aligned columns."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(table):
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  " + "  ".join(cells))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
