"""One worker of a processor, and the lease under which its handlers may start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ottla.streams.scheduling.assignment import WorkItem

log = logging.getLogger(__name__)

NO_SESSION_S: Final = 1.0
"""How long nothing is asked after there was no session."""
LOOK_EVERY_S: Final = 0.05


class Worker:
    """One task, and the work that it carries out."""

    __slots__ = ("cancelled_for", "has_deadline", "is_woken", "task", "wake", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.work: WorkItem | None = None
        self.has_deadline = False
        self.cancelled_for: str | None = None
        self.is_woken = True
        """Whether it was woken, or started, and has not run since."""
        self.wake: asyncio.Future[None] | None = None

    def cancel(self, reason: str) -> None:
        """Cancel the handler, for a reason that the worker knows."""
        if self.cancelled_for is None and self.task is not None:
            self.cancelled_for = reason
            self.task.cancel()

    def clear_cancellation(self) -> str | None:
        """Clear every cancellation that was asked for, and return the processor's reason for one."""
        reason, self.cancelled_for = self.cancelled_for, None
        while self.task is not None and self.task.uncancel():
            pass
        return reason


class Lease:
    """The end of the member's session, asked for only when the known one has passed.

    A member whose session is over has lost its partitions, and cannot know it yet: its process stood still,
    or the coordinator is out of reach. What it starts then, the next owner handles too.
    """

    def __init__(self, session_ends_s: Callable[[], float | None] | None) -> None:
        self.ends_s = 0.0
        """The time from which on `renew` must be asked."""
        self._session_ends_s = session_ends_s
        self._has_warned = False

    def renew(self, now_s: float) -> bool:
        """Return whether handlers may start; ask again from `ends_s` on."""
        ends_s = None if self._session_ends_s is None else self._session_ends_s()
        self.ends_s = now_s + NO_SESSION_S if ends_s is None else ends_s
        is_valid = now_s < self.ends_s
        if not is_valid and not self._has_warned:
            log.warning("no heartbeat was answered for session_timeout_ms: no handler starts until one is")
        self._has_warned = not is_valid
        return is_valid
