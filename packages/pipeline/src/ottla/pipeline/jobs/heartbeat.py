"""A heartbeat for code that may have nothing to report for a long time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_END_S = 30.0
"""How long the last beat may take; it writes a small file."""


@contextmanager
def heartbeat(beat: Callable[[], None], every_s: float) -> Iterator[threading.Thread]:
    """Within this context, call `beat` at an interval on a thread, which is returned.

    The thread ends when the calling thread leaves the context or ends in any other way, and stops if the
    process is stopped. After an OSError it continues with the next beat.
    """
    owner, ended = threading.current_thread(), threading.Event()

    def go_on() -> None:
        while not ended.wait(every_s) and owner.is_alive():
            try:
                beat()
            except OSError as error:
                log.warning("cannot write the heartbeat: %s", error)

    thread = threading.Thread(target=go_on, name=f"heartbeat of {owner.name}", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join(_END_S)
