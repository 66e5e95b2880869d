"""Work in parallel, each key in order: a lane per key, and one item of a lane at work at a time. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Lanes(Generic[K, T]):
    """Items by key; `take` gives the oldest whose key is free, `done` frees a key again.

    `None` is a key like any other only where `keyless_in_order` says so; otherwise keyless items are in
    nobody's order, and all of them may be at work at once.
    """

    def __init__(self, *, keyless_in_order: bool = False) -> None:
        self._keyless_in_order = keyless_in_order
        self._waiting: dict[K | None, deque[T]] = {}
        self._ready: deque[tuple[K | None, T]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Items that were put and are not done."""
        return self._count

    @property
    def ready_count(self) -> int:
        """Items that may be taken now."""
        return len(self._ready)

    def put(self, key: K | None, item: T) -> None:
        """Add an item behind those of its key."""
        self._count += 1
        if key is None and not self._keyless_in_order:
            self._ready.append((key, item))
        elif key in self._waiting:
            self._waiting[key].append(item)
        else:
            self._waiting[key] = deque()  # the lane is busy from here on
            self._ready.append((key, item))

    def take(self) -> tuple[K | None, T] | None:
        """Return an item to work at, or None while all waiting ones are behind others of their key."""
        return self._ready.popleft() if self._ready else None

    def done(self, key: K | None) -> None:
        """Take note that the item of a key that was at work is finished; the next of that key may go.

        Raises KeyError for a key nothing is at work for.
        """
        if key is None and not self._keyless_in_order:
            self._count -= 1
            return
        lane = self._waiting[key]
        self._count -= 1
        if lane:
            self._ready.append((key, lane.popleft()))
        else:
            del self._waiting[key]
