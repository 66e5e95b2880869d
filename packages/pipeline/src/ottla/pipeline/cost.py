"""The cost of a run: CPU time, bytes and rows, also of Spark's processes on other machines.

Spark reports neither the CPU time of Python workers nor the bytes that they fetch. Each worker writes both
into files of a folder that its environment names: its bytes, and the CPU time of its executor's processes.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "PIPELINE_COST_FOLDER"
"""The variable that names the folder; without it workers write nothing.

Its name does not begin with OTTLA_: a broker that is started from the same process takes those for its keys.
"""
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """A process: its parent, and the CPU time of it and of its children that have ended."""

    parent: int
    cpu_s: float


def processes(proc: Path = Path("/proc")) -> dict[int, ProcessTimes]:
    """Return the processes of this machine; none where there is no /proc."""
    return {pid: times for pid, text in _stats(proc) if (times := _times(text)) is not None}


def _stats(proc: Path) -> Iterator[tuple[int, str]]:
    for entry in proc.glob("[0-9]*/stat"):
        try:
            yield int(entry.parent.name), entry.read_text()
        except OSError:
            continue  # it ended in between


def _times(stat: str) -> ProcessTimes | None:
    # The name of the program comes second, in brackets, and may have spaces and brackets itself.
    words = stat.rpartition(")")[2].split()
    if len(words) < 15:
        return None
    return ProcessTimes(int(words[1]), sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK"))


def tree_cpu_s(root: int, found: Mapping[int, ProcessTimes]) -> float:
    """Return the CPU time of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, times in found.items():
        children.setdefault(times.parent, []).append(pid)
    waiting, total = [root], 0.0
    while waiting:
        pid = waiting.pop()
        total += found[pid].cpu_s if pid in found else 0.0
        waiting += children.get(pid, [])
    return total


def java_above(pid: int, found: Mapping[int, ProcessTimes]) -> int | None:
    """Return the executor of a Python worker: Spark's Java starts a daemon, which forks workers."""
    daemon = found.get(pid)
    java = None if daemon is None else found.get(daemon.parent)
    return None if java is None else java.parent


class WorkerCost:
    """The bytes that this worker fetched, written to its file at the end of tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._bytes = 0
        self._written_s = 0.0

    def add(self, fetched_bytes: int) -> None:
        """Count fetched bytes."""
        self._bytes += fetched_bytes

    def write(self) -> None:
        """Write the count, and once a second the CPU time of the executor."""
        host = platform.node()
        _write(self._folder / f"bytes-{host}-{self._pid}", self._bytes)
        if time.monotonic() - self._written_s < _EVERY_S:
            return
        self._written_s = time.monotonic()
        found = processes()
        java = java_above(self._pid, found)
        if java is not None:
            _write(self._folder / f"cpu-{host}-{java}", tree_cpu_s(java, found))


_of_process: dict[int, WorkerCost] = {}


def worker_cost() -> WorkerCost | None:
    """Return the counter of this process; None outside of pipelines."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return None
    # A forked process has a counter of its own.
    return _of_process.setdefault(os.getpid(), WorkerCost(Path(folder)))


def _write(file: Path, value: float) -> None:
    temporary = file.with_name(f".{file.name}-{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value))
        temporary.replace(file)
    except OSError:
        return  # a cost that is not known is no reason to fail a task


def begin_cost(folder: Path) -> dict[str, str]:
    """Empty the folder for a run; return the environment that workers need."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink(missing_ok=True)
    return {FOLDER: str(folder.absolute())}


def add_java(folder: Path, pid: int) -> None:
    """Write the CPU time of the driver's Java and its children; on one machine they are the executor, too."""
    _write(folder / f"cpu-{platform.node()}-{pid}", tree_cpu_s(pid, processes()))


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run."""

    rows: int
    cpu_s: float
    fetched_bytes: int

    def line(self) -> str:
        """Return it in words, in total and per million rows."""
        total = _words(self.cpu_s, self.fetched_bytes)
        if not self.rows:
            return f"cost: {total} for no row"
        share = 1_000_000 / self.rows
        return (
            f"cost: {total} for {self.rows:,} rows; per million rows "
            f"{_words(self.cpu_s * share, self.fetched_bytes * share)}"
        )


def _words(cpu_s: float, fetched_bytes: float) -> str:
    read = f", {fetched_bytes / 1e6:,.1f} MB of records" if fetched_bytes else ""
    return f"{cpu_s:,.1f} s of CPU{read}"


def cost_of(folder: Path, rows: int, own_cpu_s: float) -> Cost:
    """Return the cost that workers wrote to a folder, and that of the driver's Python."""
    return Cost(
        rows,
        own_cpu_s + sum(_values(folder.glob("cpu-*"))),
        int(sum(_values(folder.glob("bytes-*")))),
    )


def _values(files: Iterable[Path]) -> Iterator[float]:
    for file in files:
        try:
            yield float(json.loads(file.read_text()))
        except (OSError, ValueError):
            continue
