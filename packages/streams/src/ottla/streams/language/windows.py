"""Tumbling windows: which window a record is in, which records are late, and when windows close. Pure.

Time is event time: the timestamps of records. For each key the windows close by the timestamps of that key's
own records, which come in order: so the result is the same in every run. A key without further records closes
when the time of its partition passes, below which all records are handled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from ottla.streams.errors import TopologyError

A = TypeVar("A")

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, side by side, the first at time 0."""

    size_ms: int

    def start_of(self, timestamp_ms: int) -> int:
        """Return the start of the window that a timestamp is in."""
        return timestamp_ms - timestamp_ms % self.size_ms


def tumbling(size_ms: int) -> Tumbling:
    """Return windows of `size_ms` milliseconds that follow each other without overlap."""
    if not isinstance(size_ms, int):
        raise TopologyError(f"a window needs whole milliseconds, such as tumbling(60_000), not {size_ms!r}")
    if size_ms < 1:
        raise TopologyError(f"a window of {size_ms} ms is too small; give at least 1")
    return Tumbling(size_ms)


@dataclass(frozen=True, slots=True)
class WindowValue(Generic[A]):
    """The aggregate of one window of a key."""

    start_ms: int
    """The first timestamp inside the window."""
    end_ms: int
    """The first timestamp after it."""
    value: A


class KeyWindows(msgspec.Struct, array_like=True):
    """The state of a key: its time, and its open windows by their start."""

    time_ms: int = NO_TIME
    """The highest timestamp of the key's records."""
    open: dict[int, bytes] = {}


@dataclass(frozen=True, slots=True)
class WindowRules:
    """The size of windows, and how late records may be."""

    windows: Tumbling
    grace_ms: int = 0

    def closes_at(self, start_ms: int) -> int:
        """Return the event time at which a window takes no more records."""
        return start_ms + self.windows.size_ms + self.grace_ms

    def is_late(self, timestamp_ms: int, key_time_ms: int, closed_until_ms: int) -> bool:
        """Return whether a record's window is closed, by the key's time or the partition's."""
        start_ms = self.windows.start_of(timestamp_ms)
        return self.closes_at(start_ms) <= max(key_time_ms, closed_until_ms)

    def due_ms(self, state: KeyWindows) -> int:
        """Return when the first window of a key closes; without windows, when the key is dropped."""
        return self.closes_at(min(state.open)) if state.open else state.time_ms

    def close(self, state: KeyWindows, time_ms: int) -> tuple[KeyWindows, dict[int, bytes]]:
        """Return the state without the windows that close at a time, and those, in order."""
        if not state.open or self.closes_at(min(state.open)) > time_ms:
            return state, {}
        closed = {s: state.open[s] for s in sorted(state.open) if self.closes_at(s) <= time_ms}
        still = {start_ms: value for start_ms, value in state.open.items() if start_ms not in closed}
        return KeyWindows(state.time_ms, still), closed


def with_window(state: KeyWindows, start_ms: int, value: bytes, timestamp_ms: int) -> KeyWindows:
    """Return the state with a window's new value and the time of the record."""
    return KeyWindows(max(state.time_ms, timestamp_ms), {**state.open, start_ms: value})


def without_window(state: KeyWindows, start_ms: int, timestamp_ms: int) -> KeyWindows:
    """Return the state without a window, whose aggregate became None."""
    still = {start: value for start, value in state.open.items() if start != start_ms}
    return KeyWindows(max(state.time_ms, timestamp_ms), still)


def encode(state: KeyWindows) -> bytes:
    """Return the state as bytes."""
    return _encoder.encode(state)


def decode(data: bytes) -> KeyWindows:
    """Return the state of bytes."""
    return _decoder.decode(data)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(KeyWindows)
