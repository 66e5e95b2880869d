"""One file to which all processes of a run append what happens: its order is the order of events.

Each event is one `write` to a file opened with O_APPEND: the kernel puts them into one order that agrees with
what caused what, in all processes, and keeps what a process wrote before it was killed.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

_EVENT = struct.Struct("<BBHIQIIQ")
_READ_EVENTS = 20_000


class Kind(IntEnum):
    """The kind of an event."""

    STARTED = 1
    """A handler was called with a record."""
    FINISHED = 2
    """It is about to return: its effect, if any, is durable."""
    FAILED = 3
    """It is about to raise."""
    SET_ASIDE = 4
    """The dead letter of a record is acknowledged, or kept for the transaction."""
    ASSIGNED = 5
    REVOKED = 6
    LOST = 7
    KILLED = 8
    """A member is dead: SIGKILL was sent, and the process has been waited for."""
    LEFT = 9
    """A member was asked to stop, and its process has ended."""
    PAUSED = 10
    """A member is about to stand still; its session may end meanwhile."""


class Event(NamedTuple):
    """The events of one member; records have a key and their number among the records of that key."""

    kind: int
    member: int
    partition: int = 0
    offset: int = 0
    key: int = 0
    number: int = 0
    attempt: int = 0
    """Which call of a handler in this member it was."""
    time_ns: int = 0


class Journal:
    """Appends events to the file, from one process."""

    def __init__(self, path: Path, member: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._member = member

    def write(
        self, kind: Kind, partition: int = 0, offset: int = 0, key: int = 0, number: int = 0, attempt: int = 0
    ) -> None:
        """Append one event of this member."""
        self.write_for(self._member, kind, partition, offset, key, number, attempt)

    def write_for(
        self,
        member: int,
        kind: Kind,
        partition: int = 0,
        offset: int = 0,
        key: int = 0,
        number: int = 0,
        attempt: int = 0,
    ) -> None:
        """Append one event of a member."""
        now_ns = time.monotonic_ns()
        os.write(self._file, _EVENT.pack(kind, partition, member, attempt, offset, key, number, now_ns))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class JournalReader:
    """Reads the events that were appended since the last call."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("rb", buffering=0)

    def read(self) -> Iterator[Event]:
        """Yield events up to the end that the file has now."""
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        while left > 0:
            data = self._file.read(min(left, _READ_EVENTS * _EVENT.size))
            left -= len(data)
            for kind, partition, member, attempt, offset, key, number, time_ns in _EVENT.iter_unpack(data):
                yield Event(kind, member, partition, offset, key, number, attempt, time_ns)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
