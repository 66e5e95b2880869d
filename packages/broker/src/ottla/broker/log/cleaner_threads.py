"""The threads of the log cleaner, of a lower priority than the threads that serve requests.

The event loop shares the processors with a cleaning. A thread that has slept, as the loop does between
requests, is preferred to one that works without a pause only after some milliseconds, unless that one has a
lower priority.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Final, TypeVar

MOST_THREADS: Final = 64
NICENESS: Final = 10
"""Added to the niceness of the broker: a tenth of the processor time where all of it is asked for."""
R = TypeVar("R")


class CleanerThreads:
    """Starts a thread when there is work for it."""

    def __init__(self) -> None:
        self.stopping = Event()
        """Set when the work should end soon."""
        self._executor = ThreadPoolExecutor(MOST_THREADS, "log-cleaner", initializer=_lower_priority)

    async def run(self, work: Callable[[], R]) -> R:
        """Return what `work` returns on a thread; a wait that is cancelled ends with the work."""
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self.stopping.set()  # the thread looks at it with each read
            while not running.done():  # cancelled again: what it works on must not be released yet
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise

    def close(self) -> None:
        """Let the threads end with their work."""
        self.stopping.set()
        self._executor.shutdown(wait=False)


def _lower_priority() -> None:
    """Let other threads go first where threads have priorities of their own: on Linux alone."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
