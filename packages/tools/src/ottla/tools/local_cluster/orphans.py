"""Processes of a local cluster whose directory was deleted: only their commands name it still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
_PROGRAMS: Final = ("ottla.broker", "ottla.zookeeper", "org.apache.zookeeper.server.")
_POLL_S: Final = 0.02


def orphans_of(directory: Path) -> dict[int, str]:
    """Return the ids of processes that were started for a cluster in `directory`, with their names.

    Empty where the system does not tell of processes in /proc.
    """
    found = {}
    for process in _PROCESSES.glob("[0-9]*"):
        if name := _name_in(directory, _command_of(int(process.name))):
            found[int(process.name)] = name
    return dict(sorted(found.items(), key=lambda found: found[1]))


def _name_in(directory: Path, command: list[str]) -> str | None:
    if not any(part.startswith(_PROGRAMS) for part in command):
        return None
    homes = [
        Path(part) for part in command if Path(part).is_relative_to(directory) and Path(part) != directory
    ]
    return homes[0].relative_to(directory).parts[0] if homes else None


def _command_of(pid: int) -> list[str]:
    with suppress(OSError):
        return (_PROCESSES / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def end(pids: Iterable[int], timeout_s: float) -> None:
    """End processes with SIGTERM, and with SIGKILL those that still run after `timeout_s`."""
    running = {pid: _command_of(pid) for pid in pids}
    _signal(running, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while running and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        # Another process may get the id; one that has ended and was not waited for has no command.
        running = {
            pid: command for pid, command in running.items() if command and _command_of(pid) == command
        }
    _signal(running, signal.SIGKILL)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
