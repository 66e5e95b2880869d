"""The threads of the log cleaner.

They have the priority of the event loop. With a lower one they would keep the GIL while other programs have
the processor, and the loop would wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Final, TypeVar

MOST_THREADS: Final = 64
R = TypeVar("R")


class CleanerThreads:
    """Starts a thread when there is work for it."""

    def __init__(self) -> None:
        self.stopping = Event()
        """Set when the work should end soon."""
        self._executor = ThreadPoolExecutor(MOST_THREADS, "log-cleaner")

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
