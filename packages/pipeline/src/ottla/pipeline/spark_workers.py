"""The Python workers of Spark: the report of an error, the garbage they collect, the cache they keep.

Spark puts the whole traceback of a worker's error before its message, forty lines of asyncio among them, and
cuts the end off for a stream. Our own errors say in their message what to change, so they are reported
without it. An error of Python's own types is a bug: its traceback stays.

A worker collects all garbage after each task. Looking through the modules that Spark, Arrow and this package
import took 30 ms of CPU each time, more than a small task. The cache keeps connections from task to task.
"""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import logging
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

C = TypeVar("C", bound=type[Any])

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark looks for this variable of the environment when it reports the error of a worker."""

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
"""The time limit for closing an entry that failed; the task reports its error after that."""


def message_first(cls: C) -> C:
    """Make Spark report our own errors of a class's public methods as their message alone."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _reporting(method))
    return cls


def _reporting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **named: Any) -> Any:
        with errors_first():
            found = method(*args, **named)
        return _reporting_rows(found) if isinstance(found, Iterator) else found

    return call


def _reporting_rows(rows: Iterator[Any]) -> Iterator[Any]:
    with errors_first():
        yield from rows


@contextmanager
def errors_first() -> Iterator[None]:
    """Within this context, Spark reports our own errors as their message alone."""
    try:
        yield
    except Exception as error:
        # Set for the whole process, which is safe: a worker that reports an error ends.
        if type(error).__module__.startswith("ottla.") and _is_worker():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    """Whether Spark started this process, by `python -m pyspark.daemon` or another of its modules."""
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    return started_as is not None and started_as.name.startswith("pyspark.")


@functools.cache
def exclude_modules_from_collections() -> None:
    """Exclude existing objects, once per process: call it when a first task has imported its modules."""
    gc.freeze()


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
            log.warning(
                "closing failed", extra={"what": self._name, "reason": f"{type(error).__name__}: {error}"}
            )

    def clear(self) -> None:
        """Close all entries."""
        while self._things:
            self.forget(next(iter(self._things)))
