"""A cache for the worker processes of Spark, which keeps connections from task to task."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""The time limit for closing an entry that failed; the task reports its error after that."""


class Closable(Protocol):
    """An entry, which can be closed within a time limit."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close it. Raises TimeoutError if it takes longer."""
        ...


T = TypeVar("T", bound=Closable)


class ProcessCache(Generic[T]):
    """Entries by key; the least recently used one is closed to make room.

    `name` names an entry in the log ("a producer"). Keys are never logged, because they contain settings with
    passwords.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._things: dict[Hashable, T] = {}
        atexit.register(self.clear)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the entry of a key, created if there is none."""
        found = self._things.pop(key, None)
        if found is None:
            while len(self._things) >= self._most:
                self.forget(next(iter(self._things)))
            found = make()
        self._things[key] = found
        return found

    def forget(self, key: Hashable, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close the entry of a key and ignore errors; the next `get` creates a new one."""
        found = self._things.pop(key, None)
        if found is None:
            return
        try:
            found.close(timeout_s)
        except Exception as error:  # the entry is dropped; its error and the reason for closing it are known
            log.warning("closing %s failed: %s: %s", self._name, type(error).__name__, error)

    def clear(self) -> None:
        """Close all entries."""
        while self._things:
            self.forget(next(iter(self._things)))
