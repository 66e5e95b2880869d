"""A sign of life of something that may have nothing else to say for a long time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_END_S = 30.0
"""How long the last sign may take: it is a small file."""


@contextmanager
def heartbeat(beat: Callable[[], None], every_s: float) -> Iterator[threading.Thread]:
    """Within, call `beat` every so many seconds, on a thread of its own, which is given.

    It ends with the thread that is within, however that one ends; and whatever stops or holds the whole
    process stops it, too. After an OSError it tries again the next time.
    """
    owner, ended = threading.current_thread(), threading.Event()

    def go_on() -> None:
        while not ended.wait(every_s) and owner.is_alive():
            try:
                beat()
            except OSError as error:
                log.warning("cannot say that this runs: %s", error)

    thread = threading.Thread(target=go_on, name=f"heartbeat of {owner.name}", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        ended.set()
        thread.join(_END_S)
