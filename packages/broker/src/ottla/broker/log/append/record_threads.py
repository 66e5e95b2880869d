"""The threads on which compressed or old batches of clients are opened: two, however many ask.

A batch of a few kilobytes may become 32 MiB when it is opened, and as much again when it is written anew. Two
at a time bound that memory to 128 MiB, and leave the threads of cold reads to other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 2
P = ParamSpec("P")
T = TypeVar("T")


class RecordThreads:
    """Starts a thread when there is work for it."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(THREADS, "records")

    async def run(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Return what `work` returns on one of the threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*arguments, **named))

    def close(self) -> None:
        """Take no more work; what waits is dropped."""
        self._executor.shutdown(wait=False, cancel_futures=True)
