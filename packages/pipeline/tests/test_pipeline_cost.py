"""The cost of a run: read from /proc and from files that workers write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.pipeline.cost import (
    FOLDER,
    Cost,
    ProcessTimes,
    WorkerCost,
    add_java,
    begin_cost,
    cost_of,
    java_above,
    processes,
    tree_cpu_s,
    worker_cost,
)


def test_the_cost_is_shown_in_total_and_per_million_rows() -> None:
    cost = Cost(rows=250_000, cpu_s=3.0, fetched_bytes=25_000_000)

    assert cost.line() == (
        "cost: 3.0 s of CPU, 25.0 MB of records for 250,000 rows; "
        "per million rows 12.0 s of CPU, 100.0 MB of records"
    )
    assert Cost(0, 2.0, 0).line() == "cost: 2.0 s of CPU for no row"


def test_the_cpu_time_of_a_process_is_that_of_its_family() -> None:
    family = {
        1: ProcessTimes(0, 100.0), 10: ProcessTimes(1, 5.0), 11: ProcessTimes(10, 0.5),
        12: ProcessTimes(11, 2.0), 13: ProcessTimes(11, 3.0), 20: ProcessTimes(1, 50.0),
    }  # fmt: skip

    assert tree_cpu_s(10, family) == 10.5
    assert java_above(12, family) == 10
    assert java_above(99, family) is None


def test_times_of_processes_are_read_with_odd_names(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = "S 3 7 7 0 -1 4194560 1 2 0 0 100 50 30 20 20 0 1 0"
    (tmp_path / "7" / "stat").write_text(f"7 (a ) b) {fields}")
    (tmp_path / "8").mkdir()

    found = processes(tmp_path)

    assert found == {7: ProcessTimes(3, 200 / os.sysconf("SC_CLK_TCK"))}


def test_workers_write_what_they_fetched_and_a_run_begins_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cost"
    assert worker_cost() is None
    monkeypatch.setenv(FOLDER, begin_cost(folder)[FOLDER])
    worker = worker_cost()
    assert worker is not None
    assert worker_cost() is worker

    for size in (300, 400):
        worker.add(size)
        worker.write()

    assert cost_of(folder, 10, 1.5).fetched_bytes == 700
    assert cost_of(folder, 10, 1.5).cpu_s >= 1.5
    begin_cost(folder)
    assert cost_of(folder, 10, 1.5) == Cost(10, 1.5, 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_the_cpu_time_of_a_real_child_is_counted(tmp_path: Path) -> None:
    begin_cost(tmp_path)
    busy = "import time, sys\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", busy], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        add_java(tmp_path, child.pid)

    assert cost_of(tmp_path, 1, 0.0).cpu_s >= 0.25


def test_a_folder_that_cannot_be_written_fails_no_task(tmp_path: Path) -> None:
    worker = WorkerCost(tmp_path / "missing")

    worker.add(1)
    worker.write()

    assert cost_of(tmp_path / "missing", 1, 2.0) == Cost(1, 2.0, 0)
