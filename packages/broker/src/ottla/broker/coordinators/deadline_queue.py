"""Deadlines ordered by time, one per key: cheap to move to a later time, which each heartbeat does."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """One deadline per key, in milliseconds of a clock that never steps back.

    Moving a deadline to a later time costs one dictionary write, however many there are. The heap keeps the
    older, earlier time, and the key is looked up again when that time passes.
    """

    __slots__ = ("_at", "_heap", "_queued", "_serial")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._queued: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def set(self, key: K, at_ms: float) -> None:
        """Set the deadline of `key`, in place of the one it had."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if it has one."""
        self._at.pop(key, None)

    def get(self, key: K) -> float | None:
        """Return the deadline of `key`, or None."""
        return self._at.get(key)

    def __len__(self) -> int:
        return len(self._at)

    def next_ms(self) -> float | None:
        """Return a time before which no key is due; None without deadlines."""
        while self._heap:
            queued_ms, _, key = self._heap[0]
            if self._at.get(key) is not None and self._is_current(key, queued_ms):
                return queued_ms
            self._discard_first()
        return None

    def due(self, now_ms: float) -> list[K]:
        """Remove and return the keys whose deadline has passed, the earliest first."""
        due: list[K] = []
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if not self._is_current(key, queued_ms):
                continue
            del self._queued[key]
            at_ms = self._at.get(key)
            if at_ms is None:
                continue
            if at_ms > now_ms:
                self._push(key, at_ms)
            else:
                del self._at[key]
                due.append(key)
        return due

    def _is_current(self, key: K, queued_ms: float) -> bool:
        return self._queued.get(key) == queued_ms

    def _push(self, key: K, at_ms: float) -> None:
        self._queued[key] = at_ms
        self._serial += 1
        heapq.heappush(self._heap, (at_ms, self._serial, key))

    def _discard_first(self) -> None:
        queued_ms, _, key = heapq.heappop(self._heap)
        if self._is_current(key, queued_ms) and key not in self._at:
            del self._queued[key]
