"""Broker CPU per request, next to the floor: a C server that only moves the same bytes.

The floor appends the same batches to new files, and answers with the same batches of the first broker's own
segment, as many bytes at the same positions, over sockets with buffers of Kafka's default size. The load
comes from a C program, so that the client is never the limit. The unit is the CPU time of the broker's
process per request; within a round the contenders run one after another. Point it at any broker with
`--broker HOST:PORT --pid PID`; otherwise it starts Ottla and, if it is installed, Apache Kafka 4.4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from contenders import Contender, apache_kafka, kafka_is_here, ottla, quiet, show

NATIVE = Path(__file__).resolve().parent / "native"
FETCH_OFFSETS_BYTES = 64 << 20
WARM_UP_S = 0.3
BUFFER_BYTES = 102_400
"""The buffers of the floor's sockets: Kafka's default of `socket.send.buffer.bytes` and its pair."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    name: str
    api: str
    size: int
    connections: int
    in_flight: int
    goal: float | None = None
    """CPU per request, in floors, that the design asks for."""


CASES = (
    Case("produce 200 B, 32 in flight x 16", "produce", 200, 16, 32, 1.0),
    Case("produce 200 B, 1 in flight x 32", "produce", 200, 32, 1),
    Case("produce 16 KB, 8 in flight x 8", "produce", 16 << 10, 8, 8, 1.25),
    Case("produce 1 MB, 2 in flight x 4", "produce", 1_000_000, 4, 2, 1.25),
    Case("fetch 16 KB, 4 in flight x 8", "fetch", 16 << 10, 8, 4),
    Case("fetch 64 KB, 4 in flight x 8", "fetch", 64 << 10, 8, 4, 1.25),
    Case("fetch 1 MB, 2 in flight x 4", "fetch", 1_000_000, 4, 2),
)


@dataclass
class Figures:
    """The results of one contender in one case."""

    cpu_us: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        return statistics.median(self.cpu_us)


def compile_native(folder: Path) -> None:
    """Build the load generator and the floor."""
    for name in ("load", "floor"):
        subprocess.run(["cc", "-O2", "-o", folder / name, NATIVE / f"{name}.c"], check=True, timeout=60)


def load(
    folder: Path,
    port: int,
    topic: str,
    case: Case,
    seconds: float,
    last: int,
    *,
    floor: bool,
    program: str = "load",
) -> list[float]:
    """Run the load generator; return its figures."""
    arguments = [case.api, topic, "0", case.size, case.connections, case.in_flight, seconds, last]
    done = subprocess.run(
        [str(folder / program), "127.0.0.1", str(port), *map(str, arguments)],
        env={**os.environ, "OTTLA_FLOOR": "1"} if floor else None,
        capture_output=True, text=True, timeout=seconds + 180, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stderr.strip()}")
    return [float(one) for one in done.stdout.split()]


def cpu_of(pid: int) -> float:
    """Return the CPU time of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def floor(folder: Path, case: Case, topic: str, segment: Path) -> Iterator[tuple[int, int]]:
    """Run the C server for one case, on `segment` for fetches; yield its pid and port."""
    extra = [str(len(topic))]
    with tempfile.TemporaryDirectory(dir=folder) as own:
        if case.api == "fetch":
            extra.append(str(batch_bytes(case.size)))
        file = segment if case.api == "fetch" else Path(own, "segment")
        process = subprocess.Popen(
            [folder / "floor", case.api, file, *extra],
            env={**os.environ, "OTTLA_FLOOR_BUFFER_BYTES": str(BUFFER_BYTES)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()
            process.communicate()


def batch_bytes(value_bytes: int) -> int:
    """Return the size of the load generator's batches: one record, without key and headers."""
    record = 5 + _varint_bytes(value_bytes) + value_bytes
    return 61 + _varint_bytes(record) + record


def _varint_bytes(value: int) -> int:
    return max(1, ((2 * value).bit_length() + 6) // 7)


def segment_of(folder: Path, contender: Contender, topic: str, case: Case, count: int) -> Path:
    """Return the segment that holds a topic that was filled for fetches.

    For a running broker, whose directory is not known, a file of as many batches is written.
    """
    size = batch_bytes(case.size)
    for path in contender.data_dir.rglob(f"{topic}-0/{0:020}.log"):
        if path.stat().st_size == count * size:
            return path
    path = folder / "segment"
    with path.open("wb", buffering=0) as out:
        for _ in range(count):
            out.write(bytes(size))
    return path


def measure(
    folder: Path,
    pid: int,
    port: int,
    topic: str,
    case: Case,
    seconds: float,
    last: int,
    *,
    floor: bool,
    program: str = "load",
) -> tuple[float, float, float]:
    """Load one broker; return CPU µs per request, requests a second, and p99 in µs."""
    before = cpu_of(pid)
    requests, took, _, _, _, errors, _, p99 = load(
        folder, port, topic, case, seconds, last, floor=floor, program=program
    )
    if errors:
        raise RuntimeError(f"{case.name}: {errors:.0f} of {requests:.0f} answers were errors")
    return (cpu_of(pid) - before) / requests * 1e6, requests / took, p99


def prepare(folder: Path, contender: Contender, case: Case) -> tuple[str, int]:
    """Create a case's topic, filled for fetches; return its name and the load generator's last argument."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"{case.api}-{case.size}-{case.in_flight}-{time.monotonic_ns()}"
    admin = AdminClient({"bootstrap.servers": contender.bootstrap_servers})
    config = {"retention.bytes": "-1", "max.message.bytes": "4000000", "file.delete.delay.ms": "100"}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(30)
    if case.api == "produce":
        return topic, 1
    count = max(8, FETCH_OFFSETS_BYTES // case.size)
    filler = Case("fill", "fill", case.size, 1, 8)
    load(folder, contender.port, topic, filler, count, 1, floor=False)
    return topic, count


def delete(contender: Contender, topic: str) -> None:
    """Delete a topic before its data reaches the disk."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": contender.bootstrap_servers})
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def run(folder: Path, contenders: list[Contender], rounds: int, seconds: float, only: str) -> None:
    rows = []
    for case in (one for one in CASES if only in one.name):
        figures = {name: Figures() for name in ("floor", *(one.name for one in contenders))}
        for number in range(rounds + 1):
            for name, measured in one_round(folder, contenders, case, seconds):
                if number:  # the first warms compilers and caches
                    note(figures[name], measured)
        rows.append(row(case, figures))
        print("  " + "  ".join(rows[-1]), flush=True)
    names = [one.name for one in contenders]
    header = (
        "",
        "floor µs",
        *(text for name in names for text in (f"{name} µs", "x floor", "req/s")),
        "goal",
    )
    show("broker CPU per request", rows, header)


def one_round(
    folder: Path, contenders: list[Contender], case: Case, seconds: float
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Measure every contender on a topic of its own, and the floor on the first one's."""
    prepared = [(one, *prepare(folder, one, case)) for one in contenders]
    first, topic, last = prepared[0]
    segment = segment_of(folder, first, topic, case, last)
    with floor(folder, case, topic, segment) as (pid, port):
        load(folder, port, topic, case, WARM_UP_S, last, floor=True)
        yield "floor", measure(folder, pid, port, topic, case, seconds, last, floor=True)
    for contender, topic, last in prepared:
        load(folder, contender.port, topic, case, WARM_UP_S, last, floor=False)
        quiet(contender, 5)
        yield (
            contender.name,
            measure(folder, contender.pid, contender.port, topic, case, seconds, last, floor=False),
        )
        delete(contender, topic)


def note(figures: Figures, measured: tuple[float, float, float]) -> None:
    for values, value in zip((figures.cpu_us, figures.per_second, figures.p99_us), measured, strict=True):
        values.append(value)


def row(case: Case, figures: dict[str, Figures]) -> tuple[str, ...]:
    base = figures["floor"].median_us
    cells = [case.name, f"{base:.2f}"]
    for name, one in figures.items():
        if name != "floor":
            rate = statistics.median(one.per_second)
            cells += [f"{one.median_us:.2f}", f"{one.median_us / base:.2f}", f"{rate:,.0f}"]
    return (*cells, "" if case.goal is None else f"{case.goal:g} x")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--broker", help="HOST:PORT of a running broker, instead of starting one")
    parser.add_argument("--pid", type=int, help="the running broker's process")
    parser.add_argument("--without-kafka", action="store_true", help="do not start Apache Kafka")
    options = parser.parse_args()
    rounds, seconds = (2, 3.0) if options.quick else (5, 3.0)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        compile_native(folder)
        if options.broker:
            contenders = [Contender("broker", options.broker, options.pid, folder)]
        else:
            contenders = [stack.enter_context(ottla(folder))]
            if not options.without_kafka and kafka_is_here():
                contenders.append(stack.enter_context(apache_kafka(folder)))
        run(folder, contenders, rounds, seconds, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
