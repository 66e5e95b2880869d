"""Names the handler that blocks the event loop, while it does: a thread asks the loop whether it still turns.

The thread asks every 250 ms. If the loop has not turned 200 ms later, what it executes is read from its
stack: a warning names the handler and the line. A handler that goes on is named again after twice the time,
and again after four times; one that blocks for each record once in ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from ottla.streams.operating.log_lines import LineLimit

ASK_EVERY_S: Final = 0.25
BLOCKED_AFTER_S: Final = 0.2
SAME_LINE_MS: Final = 10_000
STOP_LIMIT_S: Final = 5.0
_PACKAGE: Final = str(Path(__file__).parent.parent)
_WORKERS: Final = str(Path(_PACKAGE, "processing", "workers.py"))

log = logging.getLogger("ottla.streams")


@dataclass(frozen=True, slots=True)
class Blocker:
    """The handler that the loop executes, and the line that it is in."""

    handler: str
    line: str


class LoopWatch:
    """Watches the loop of the current thread inside `with`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._turned = threading.Event()
        self._stopped = threading.Event()
        self._limit = LineLimit(lambda: self._loop.time() * 1_000, every_ms=SAME_LINE_MS)
        self._thread = threading.Thread(target=self._watch, name="ottla-streams-loop-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._turned.set()
        self._thread.join(STOP_LIMIT_S)

    def _watch(self) -> None:
        while not self._stopped.wait(ASK_EVERY_S):
            self._turned.clear()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # the loop is closed
                return
            self._await_turn()

    def _await_turn(self) -> None:
        began_s, limit_s = self._loop.time(), BLOCKED_AFTER_S
        while not self._turned.wait(max(0.0, began_s + limit_s - self._loop.time())):
            blocker = blocker_of(sys._current_frames().get(self._thread_id))
            blocked_ms = round((self._loop.time() - began_s) * 1_000)
            if blocker is not None:
                self._warn(blocker, blocked_ms, is_first=limit_s == BLOCKED_AFTER_S)
            limit_s *= 2

    def _warn(self, blocker: Blocker, blocked_ms: int, *, is_first: bool) -> None:
        if is_first and self._limit.admit(blocker.handler) is None:
            return
        log.warning(
            "a handler blocks the event loop: other handlers and heartbeats wait; await what takes long, or "
            "declare the handler with def, so that it runs on a thread",
            extra={"handler": blocker.handler, "blocked_ms": blocked_ms, "line": blocker.line},
        )


def blocker_of(frame: FrameType | None) -> Blocker | None:
    """Return the handler on a stack of which this is the innermost frame; None if it executes none."""
    frames: list[FrameType] = []
    while frame is not None and not (frame.f_code.co_name == "_run" and frame.f_code.co_filename == _WORKERS):
        frames.append(frame)
        frame = frame.f_back
    outside = [frame for frame in frames if not frame.f_code.co_filename.startswith(_PACKAGE)]
    if frame is None or not outside:
        return None
    handler, innermost = outside[-1], outside[0]
    return Blocker(handler.f_code.co_qualname, f"{innermost.f_code.co_filename}:{innermost.f_lineno}")
