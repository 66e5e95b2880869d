"""A queue per key (a lane), with one active item each: parallel work in the order of each key. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Lanes(Generic[K, T]):
    """Items by key; `take` returns the oldest item whose key is free, `done` frees a key again.

    Items with key `None` share a lane only if `keyless_in_order` is set; otherwise they are unordered, and
    all of them may be active at once.
    """

    def __init__(self, *, keyless_in_order: bool = False) -> None:
        self._keyless_in_order = keyless_in_order
        self._waiting: dict[K | None, deque[T]] = {}
        self._ready: deque[tuple[K | None, T]] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Number of items that are put and not done."""
        return self._count

    @property
    def ready_count(self) -> int:
        """Number of items that can be taken now."""
        return len(self._ready)

    def put(self, key: K | None, item: T) -> None:
        """Add an item at the end of its key's lane."""
        self._count += 1
        if key is None and not self._keyless_in_order:
            self._ready.append((key, item))
        elif key in self._waiting:
            self._waiting[key].append(item)
        else:
            self._waiting[key] = deque()  # the lane is busy from here on
            self._ready.append((key, item))

    def take(self) -> tuple[K | None, T] | None:
        """Return the next item; None if all waiting items are behind active items of their keys."""
        return self._ready.popleft() if self._ready else None

    def done(self, key: K | None) -> None:
        """Register that the active item of a key is finished; the key's next item becomes ready.

        Raises KeyError if the key has no active item.
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
