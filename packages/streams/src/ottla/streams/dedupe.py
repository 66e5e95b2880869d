"""Detection of repeated records by an id, within bounded memory. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class Dedupe:
    """Remembers the last `capacity` ids, none longer than `window_ms`.

    It cannot detect a repetition after that, nor one from before a restart: for those, ids must be stored
    with the results of the work.
    """

    def __init__(self, capacity: int, window_ms: int) -> None:
        if capacity < 1 or window_ms < 1:
            raise ValueError("capacity and window_ms must be at least 1")
        self._capacity = capacity
        self._window_ms = window_ms
        self._seen: OrderedDict[Hashable, int] = OrderedDict()

    def __len__(self) -> int:
        """Number of remembered ids."""
        return len(self._seen)

    def first_time(self, identity: Hashable, now_ms: int) -> bool:
        """Return whether an id is new, and remember it; a repetition does not extend its time."""
        self._forget(now_ms)
        if identity in self._seen:
            return False
        self._seen[identity] = now_ms
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True

    def _forget(self, now_ms: int) -> None:
        while self._seen:
            identity, since_ms = next(iter(self._seen.items()))
            if now_ms - since_ms < self._window_ms:
                return
            del self._seen[identity]
