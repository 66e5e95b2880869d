"""The controller's queue of events.

It is unbounded: a caller that waited for room in it would block what empties it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ottla.broker.controller.events import Event
from ottla.broker.peers.controller_requests import Answers
from ottla.protocol.errors import NotController


class QueuedEvent:
    """An event in the queue, with the future of the caller that waits for its answer."""

    def __init__(self, event: Event, queued_ms: float, future: asyncio.Future[Answers] | None) -> None:
        self.event = event
        self.queued_ms = queued_ms
        self.future = future

    def answer(self, answers: Answers) -> None:
        """Give the caller its answer, if one waits."""
        if self.future is not None and not self.future.done():
            self.future.set_result(answers)

    def refuse(self) -> None:
        """Answer NotController: the caller must ask another broker."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(NotController())


class EventQueue:
    """Events in the order of their arrival; `arrived` is called for each."""

    def __init__(self, monotonic_ms: Callable[[], float], arrived: Callable[[], None]) -> None:
        self._monotonic_ms = monotonic_ms
        self._arrived = arrived
        self._events: deque[QueuedEvent] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event, future: asyncio.Future[Answers] | None = None) -> None:
        """Add an event."""
        self._events.append(QueuedEvent(event, self._monotonic_ms(), future))
        self._arrived()

    async def ask(self, event: Event) -> Answers:
        """Add an event and wait for its answer; raises NotController when it is refused."""
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self.put(event, future)
        return await future

    def take(self) -> QueuedEvent:
        """Remove and return the first event."""
        return self._events.popleft()

    def refuse_all(self) -> None:
        """Empty the queue; every caller gets NotController."""
        while self._events:
            self._events.popleft().refuse()
