"""Handlers that worker processes import by their names."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from ottla.streams.handlers.context import Context


class Job(msgspec.Struct):
    """The effects of the handlers for a record."""

    do: str
    file: str = ""


class TwoPartError(Exception):
    """An exception that can be pickled, and not be loaded again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def work(job: Job, context: Context) -> None:
    """Do what the record says."""
    actions: dict[str, Any] = {
        "emit": lambda: context.emit("done", str(os.getpid()), key=context.record.key),
        "fail": lambda: _raise(ValueError("no such job")),
        "fail strangely": lambda: _raise(TwoPartError("half", "full")),
        "exit": lambda: os._exit(3),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leave": lambda: sys.exit(4),
        "hang": lambda: _hang(Path(job.file)),
    }
    actions[job.do]()


def work_all(jobs: list[Job], context: Context) -> None:
    """Emit what all records say."""
    context.emit("done", ",".join(each.do for each in jobs))


def _raise(error: BaseException) -> None:
    raise error


def _hang(file: Path) -> None:
    file.write_text(str(os.getpid()))
    threading.Event().wait()


def double(number: int, context: Context) -> None:
    """Emit twice a number."""
    context.emit("doubled", str(2 * number), key=context.record.key)
