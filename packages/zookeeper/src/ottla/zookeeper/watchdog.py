"""End a process whose event loop blocks while kazoo keeps its ZooKeeper session alive.

kazoo pings from a thread of its own, so a broker with a blocked loop keeps its session, and the cluster keeps
a leader that serves nobody. The watchdog ends such a process; its session expires and other brokers take
over.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType

from ottla.zookeeper.environment import monotonic_s

log = logging.getLogger(__name__)
EXIT_STATUS = 70


def dump_stacks(silent_ms: float) -> None:
    """Log the stack of every thread."""
    log.error("the event loop is silent", extra={"silent_ms": round(silent_ms)})
    faulthandler.dump_traceback(all_threads=True)


def end_process(silent_ms: float) -> None:
    """End the process at once: the resources of a blocked loop cannot be closed in order."""
    log.critical("the process ends: its event loop is silent", extra={"silent_ms": round(silent_ms)})
    os._exit(EXIT_STATUS)


class LoopWatchdog:
    """Watches the running loop while the context lasts.

    `on_slow` is called after two thirds of `session_timeout_ms` without an iteration of the loop, once per
    pause, and `on_dead` after all of it; both on the watchdog's thread. Time in which the whole process was
    stopped (SIGSTOP, a suspended laptop) does not count.
    """

    def __init__(
        self,
        session_timeout_ms: int,
        *,
        on_slow: Callable[[float], None] = dump_stacks,
        on_dead: Callable[[float], None] = end_process,
    ) -> None:
        self._dead_after_ms = float(session_timeout_ms)
        self._slow_after_ms = session_timeout_ms * 2 / 3
        self._period_s = session_timeout_ms / 20_000
        self._on_slow = on_slow
        self._on_dead = on_dead
        self._beats = 0
        self._stop = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True, name="ottla-loop-watchdog")

    async def __aenter__(self) -> LoopWatchdog:
        self._loop = asyncio.get_running_loop()
        self._beat()
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        self._beats += 1
        self._handle = self._loop.call_later(self._period_s, self._beat)

    def _watch(self) -> None:
        seen, silent_ms, told, last = 0, 0.0, False, monotonic_s()
        while not self._stop.wait(self._period_s):
            now = monotonic_s()
            # If this thread did not run either, the process was stopped, not the loop blocked.
            elapsed_ms, last = min(now - last, 2 * self._period_s) * 1000, now
            if self._beats != seen:
                seen, silent_ms, told = self._beats, 0.0, False
                continue
            silent_ms += elapsed_ms
            if silent_ms >= self._dead_after_ms:
                self._on_dead(silent_ms)
                return
            if silent_ms >= self._slow_after_ms and not told:
                told = True
                self._on_slow(silent_ms)
