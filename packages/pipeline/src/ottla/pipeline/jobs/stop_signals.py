"""Signals that stop a pipeline in an orderly way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def stop_on_signals(stopping: threading.Event, said: str = "") -> Iterator[None]:
    """Within this context, SIGTERM and a first Ctrl+C request a stop; a second Ctrl+C exits at once.

    `said` is printed at the request.
    """

    def ask(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        with suppress(OSError):  # stderr may be closed
            os.write(2, said.encode())  # the interrupted code may hold the lock of the buffered stream

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
