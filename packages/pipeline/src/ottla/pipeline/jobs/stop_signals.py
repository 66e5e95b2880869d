"""Signals that end a pipeline, in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def stop_on_signals(stopping: threading.Event, said: str = "") -> Iterator[None]:
    """Within, SIGTERM and a first Ctrl+C ask to stop and say `said`; a second Ctrl+C ends at once."""

    def ask(number: int, frame: Any) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()
        with suppress(OSError):  # nobody may read it any more
            os.write(2, said.encode())  # what buffers may be in the midst of a line

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
