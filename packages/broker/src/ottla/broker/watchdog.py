"""A thread that ends the process when its event loop is stuck.

kazoo keeps the ZooKeeper session alive from a thread of its own, so a broker whose loop hangs
would stay leader and serve nobody. After two thirds of a session timeout of silence the stacks
are written out, after a whole one the process ends, and the cluster elects somebody else.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

_log = logging.getLogger(__name__)

EXIT_CODE: Final = 70
_CHECKS_PER_TIMEOUT: Final = 12


class Watchdog:
    """Watches the running loop while it is entered. Only for a process that is nothing but a broker."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._interval_s = self._timeout_s / _CHECKS_PER_TIMEOUT
        self._heard_s = time.monotonic()
        self._over = threading.Event()
        self._warned = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._beat()
        threading.Thread(target=self._watch, name="event-loop-watchdog", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._over.set()

    def _beat(self) -> None:
        self._heard_s = time.monotonic()
        self._warned = False
        self._timer = self._loop.call_later(self._interval_s, self._beat)

    def _watch(self) -> None:
        while not self._over.wait(self._interval_s):
            silent_s = time.monotonic() - self._heard_s
            if silent_s > self._timeout_s:
                self._end(silent_s)
            elif silent_s > self._timeout_s * 2 / 3 and not self._warned:
                self._warned = True
                _log.error("the event loop has been silent for %.1f s", silent_s)
                faulthandler.dump_traceback(all_threads=True)

    def _end(self, silent_s: float) -> None:
        sys.stderr.write(f"the event loop has been silent for {silent_s:.1f} s: the broker ends itself\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)
