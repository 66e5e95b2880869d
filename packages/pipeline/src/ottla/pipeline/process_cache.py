"""What a worker process of Spark keeps from task to task: connections above all."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""How long something that failed may take to close: a task waits for it to report what went wrong."""


class Closable(Protocol):
    """Whatever can be closed within a time."""

    def close(self, timeout_s: float | None = None) -> None:
        """Close it. Raises TimeoutError when it takes longer."""
        ...


T = TypeVar("T", bound=Closable)


class ProcessCache(Generic[T]):
    """Things by what they were made for; the one longest unused makes room.

    `name` is what the log calls one of them ("a producer"). Keys are never told: settings are in them, and in
    those passwords.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._things: dict[Hashable, T] = {}
        atexit.register(self.clear)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what there is for a key, made now if there is none."""
        found = self._things.pop(key, None)
        if found is None:
            while len(self._things) >= self._most:
                self.forget(next(iter(self._things)))
            found = make()
        self._things[key] = found
        return found

    def forget(self, key: Hashable, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Close what there is for a key, whether that goes well or not; the next one begins anew."""
        found = self._things.pop(key, None)
        if found is None:
            return
        try:
            found.close(timeout_s)
        except Exception as error:  # it is given up: that it failed is known, and why it was closed
            log.warning("closing %s failed: %s: %s", self._name, type(error).__name__, error)

    def clear(self) -> None:
        """Close everything."""
        while self._things:
            self.forget(next(iter(self._things)))
