"""One run of one stream application: the records that it handled, in which order, when, and at what cost.

Standard library only: applications of other projects run in environments without ottla. The first records
warm up and are not measured. A run ends with the last record or at its time limit, at which the process
ends itself, because no two frameworks shut down alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM_UP_LIMIT_S = 2.0
# A value: 10 digits of the record's number within its key, a space, 9 digits of its handler's microseconds,
# a space, 16 digits of the microseconds since 1970 when it was sent. The record's own timestamp is no
# measure: our producer reads a clock that moves every 4 to 10 ms.
NUMBER = slice(0, 10)
HANDLER_US = slice(11, 20)
SENT_US = slice(21, 37)


@dataclass(frozen=True)
class Task:
    """The orders of the parent to an application: its only argument, in JSON."""

    style: str
    servers: str
    topic: str
    group: str
    is_noop: bool
    warm_up: int
    total: int
    limit_s: float
    concurrency: int
    folder: str

    @classmethod
    def given(cls) -> Task:
        """Return the task of this process."""
        return cls(**json.loads(sys.argv[1]))


class Meter:
    """Counts handled records, and writes the result when all are handled or time is up."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.count = 0
        self.disordered = 0
        self._mark = 1
        self._running: set[bytes] = set()
        self._last: dict[bytes, int] = {}
        self._latencies_ms = array("d")
        self._lock = threading.Lock()
        self._warm = threading.Event()
        self._first_count = -1

    # --- handlers

    async def nothing(self, record: Any) -> None:
        """The handler without work."""
        self.count += 1
        if self.count == self._mark:
            self._reached()

    def nothing_sync(self, record: Any) -> None:
        """The handler without work, as a plain function."""
        self.count += 1
        if self.count == self._mark:
            self._reached()

    async def sleep(self, key: bytes, value: bytes) -> None:
        """The handler that waits as long as the record says."""
        seconds = self._begin(key, value)
        if seconds:
            await asyncio.sleep(seconds)
        self._end(key, value)

    def sleep_sync(self, key: bytes, value: bytes) -> None:
        """The handler that waits as long as the record says, as a plain function."""
        seconds = self._begin(key, value)
        if seconds:
            time.sleep(seconds)
        self._end(key, value)

    def _begin(self, key: bytes, value: bytes) -> float:
        number = int(value[NUMBER])
        if key in self._running or number != self._last.get(key, -1) + 1:
            self.disordered += 1
        self._running.add(key)
        self._last[key] = number
        return int(value[HANDLER_US]) / 1e6

    def _end(self, key: bytes, value: bytes) -> None:
        self._running.discard(key)
        self._latencies_ms.append(time.time() * 1000 - int(value[SENT_US] or 0) / 1000)
        self.count += 1
        if self.count == self._mark:
            self._reached()

    # --- start and end of the measurement

    def _reached(self) -> None:
        if self.count == 1:
            threading.Thread(target=self._watch, daemon=True).start()
        if self.count >= self.task.total:
            self._finish()
        elif self.count >= self.task.warm_up:
            self._start()
            self._mark = self.task.total
        else:
            self._mark = self.task.warm_up

    def _watch(self) -> None:
        self._warm.wait(WARM_UP_LIMIT_S)
        self._start()
        time.sleep(self.task.limit_s)
        self._finish()

    def _start(self) -> None:
        with self._lock:
            if self._first_count < 0:
                self._first_count = self.count
                self._first_latency = len(self._latencies_ms)
                self._cpu_s, self._wall_s = _cpu_seconds(), time.perf_counter()
                Path(self.task.folder, "warm").touch()
                self._warm.set()

    def _finish(self) -> None:
        with self._lock:
            wall_s, cpu_s = time.perf_counter() - self._wall_s, _cpu_seconds() - self._cpu_s
            latencies = sorted(self._latencies_ms[self._first_latency :])
            result = {
                "records": self.count - self._first_count,
                "all_handled": self.count >= self.task.total,
                "wall_s": wall_s,
                "cpu_s": cpu_s,
                "peak_mib": _peak_mib(),
                "disordered": self.disordered,
                "p50_ms": _percentile(latencies, 0.50),
                "p99_ms": _percentile(latencies, 0.99),
            }
            written = Path(self.task.folder, "result.new")
            written.write_text(json.dumps(result))
            written.rename(Path(self.task.folder, "result.json"))
            sys.stdout.flush()
            os._exit(0)


def _percentile(values: list[float], share: float) -> float:
    return values[int((len(values) - 1) * share)] if values else 0.0


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_mib() -> float:
    # getrusage would give the parent's peak if that is larger.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
