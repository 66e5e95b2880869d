"""The files that one broker's logs keep open: sealed segments within a limit, room for new partitions.

The newest segment of each partition stays open and costs one descriptor. Others are opened when
they are read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.protocol.errors import PolicyViolation

if TYPE_CHECKING:
    from ottla.broker.log.segments.segment import Segment

_FEWEST_SEALED: Final = 8
_COUNTED_MS: Final = 1_000
_PROMISE_MS: Final = 30_000


class OpenSegments:
    """The sealed segments whose files are open, of all logs: the one opened first is closed first."""

    __slots__ = ("_active", "_limit", "_sealed")

    def __init__(self, limit: int = 16, active: Callable[[], int] = int) -> None:
        """Keep at most `limit` segments open; `active` returns how many of these are the newest of a log."""
        self._limit = limit
        self._active = active
        self._sealed: dict[Segment, None] = {}

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._sealed

    def opening(self, segment: Segment) -> None:
        """Note that a sealed segment is about to be opened; closes others if there are too many."""
        self._sealed[segment] = None
        most = max(_FEWEST_SEALED, self._limit - self._active())
        while len(self._sealed) > most:
            old = next(iter(self._sealed))
            del self._sealed[old]
            if not (old.active or old.is_pinned):
                old.close()

    def forget(self, segments: Iterable[Segment]) -> None:
        """Forget segments that were closed, or that left their log."""
        for segment in segments:
            self._sealed.pop(segment, None)


def open_descriptors() -> int:
    """How many descriptors this process has open; 0 where the system does not show it."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def most_descriptors() -> int:
    """How many descriptors this process may open."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def allow_all_descriptors() -> None:
    """Raise the limit of open files and connections to the one that the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PartitionRoom:
    """Refuses new partitions that this broker could not open.

    A partition is promised when its topic is created and opened when the controller says so: what was
    promised in the last seconds counts as open.
    """

    def __init__(
        self,
        monotonic_ms: Callable[[], float],
        opened: Callable[[], int] = open_descriptors,
        most: Callable[[], int] = most_descriptors,
    ) -> None:
        self._monotonic_ms = monotonic_ms
        self._opened = opened
        self._most = most
        self._count = 0
        """How many are open, as it was counted in the last second, with what was opened since."""
        self._count_until_ms = 0.0
        self._promised: deque[list[float]] = deque()
        """[end of the promise, partitions of it that are not open yet], the oldest first."""

    def check(self, partitions: int) -> None:
        """Raise `PolicyViolation` when there are not enough descriptors for so many new partitions.

        A sixteenth of all is left for connections and for work in between.
        """
        now_ms = self._monotonic_ms()
        while self._promised and self._promised[0][0] <= now_ms:
            self._promised.popleft()
        if now_ms >= self._count_until_ms:  # counting 20,000 takes milliseconds
            self._count, self._count_until_ms = self._opened(), now_ms + _COUNTED_MS
        most, opened = self._most(), self._count + sum(int(count) for _, count in self._promised)
        if opened + partitions > most - most // 16:
            raise PolicyViolation(
                f"This broker cannot open {partitions} more partitions: {opened} of the {most} files it may "
                "have open are in use. Raise the limit (ulimit -n), or use fewer partitions."
            )

    def promise(self, partitions: int) -> None:
        """Count partitions as open that are about to be opened."""
        self._promised.append([self._monotonic_ms() + _PROMISE_MS, partitions])

    def opened(self) -> None:
        """Note that a partition was opened: it counts by itself now."""
        self._count += 1
        if self._promised:
            self._promised[0][1] -= 1
            if self._promised[0][1] <= 0:
                self._promised.popleft()
