"""The threads for blocking work: as many as `num.io.threads`, also after the key has changed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor


class IoThreads:
    """The default executor of a running loop, which it gets here."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(count, "io")
        self._count = count
        self._loop.set_default_executor(self._executor)

    def resize(self, count: int) -> None:
        """Give later work another number of threads; what runs or waits ends on the threads it has."""
        if count == self._count:
            return
        before, self._executor, self._count = self._executor, ThreadPoolExecutor(count, "io"), count
        self._loop.set_default_executor(self._executor)
        before.shutdown(wait=False)
