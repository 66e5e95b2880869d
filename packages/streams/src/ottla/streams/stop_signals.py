"""Signals that stop an app: the first in an orderly way, the second at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SAME_S: Final = 0.5


class StopSignals:
    """Within `with`, on the main thread with a running loop: a first signal calls `stop` on the loop.

    A second one ends the process with exit code 1, also while a handler blocks the loop: nothing is lost by
    it, for what is not committed is handled again. One that comes within half a second is the first still:
    a terminal and a supervisor may both pass on the same Ctrl+C. `said` is printed to standard error at the
    first.
    """

    # Python's own signal handlers, not the loop's: those run on the loop only, which a handler may block.

    def __init__(self, stop: Callable[[], None], said: str) -> None:
        self._stop = stop
        self._said = said
        self._asked_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        assert self._loop is not None
        now_s = self._loop.time()
        if self._asked_s is not None:
            if now_s - self._asked_s >= _SAME_S:
                os._exit(1)
            return
        self._asked_s = now_s
        with suppress(OSError):  # stderr may be closed
            os.write(2, self._said.encode())  # the interrupted code may hold the lock of the buffered stream
        self._loop.call_soon_threadsafe(self._stop)
