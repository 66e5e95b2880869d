"""The client's state machine of a session: number, state, listeners, watches, operations in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar, cast

from ottla.zookeeper.errors import ConnectionLoss, SessionExpired, ZooKeeperError
from ottla.zookeeper.session import EventType, SessionState, StateChange, WatchEvent
from ottla.zookeeper.watches import ArmedWatches, kinds_of

log = logging.getLogger(__name__)
T = TypeVar("T")


class SessionStateMachine:
    """Tracks state and session number, calls listeners, and fails operations of earlier sessions.

    Used on the event loop only. Every operation in flight is a future tracked here, so that the end of a
    session or connection fails it at once, even if the transport still works on it.
    """

    def __init__(self) -> None:
        self.state = SessionState.CONNECTING
        self.session_id = 0
        self.session_number = 0
        self.watches = ArmedWatches()
        self._listeners: dict[Callable[[StateChange], None], None] = {}
        self._in_flight: dict[asyncio.Future[object], None] = {}

    @property
    def connected(self) -> bool:
        """Whether operations can be sent now."""
        return self.state is SessionState.CONNECTED

    # -- transitions

    def became_connected(self, session_id: int) -> None:
        """Enter CONNECTED with the same or a new session; every armed watch fires once with NONE."""
        if self.state is SessionState.CLOSED:
            return
        if self.session_id and session_id != self.session_id and self.state is not SessionState.LOST:
            self.became_lost("replaced by a new session")
        self.session_id = session_id
        self._enter(SessionState.CONNECTED)
        for watch, event in self.watches.take_all(self.session_number):
            _call(watch, event)

    def became_suspended(self) -> None:
        """Enter SUSPENDED: the connection is lost; operations in flight fail with an unknown outcome."""
        if self.state is not SessionState.CONNECTED:
            return
        self._fail_in_flight(ConnectionLoss("", "the connection broke"))
        self._enter(SessionState.SUSPENDED)

    def became_lost(self, why: str) -> None:
        """Enter LOST: the session expired or must be presumed expired; the number rises."""
        if self.state in (SessionState.CONNECTING, SessionState.CLOSED):
            return
        self.session_number += 1
        self._fail_in_flight(SessionExpired("", why))
        self._enter(SessionState.LOST)

    def became_closed(self) -> None:
        """Enter CLOSED, for good."""
        if self.state is SessionState.CLOSED:
            return
        self.session_number += 1
        self._fail_in_flight(SessionExpired("", "the session was closed"))
        self._enter(SessionState.CLOSED)
        self._listeners.clear()

    def watch_fired(self, event: EventType, path: str, session_number: int) -> None:
        """Call the watches of an event; drop events of an earlier session."""
        if session_number != self.session_number:
            return
        for watch in self.watches.take(kinds_of(event), path):
            _call(watch, WatchEvent(event, path, session_number))

    # -- queries of the owner

    def check(self, session_number: int | None) -> None:
        """Raise unless an operation decided in session `session_number` may be sent now."""
        if self.state is SessionState.CLOSED:
            raise SessionExpired("", "the session was closed")
        if session_number is not None and session_number != self.session_number:
            raise SessionExpired("", f"decided in session {session_number}, now {self.session_number}")
        if not self.connected:
            raise ConnectionLoss("", f"not connected ({self.state.value})")

    def track(self, future: asyncio.Future[T]) -> asyncio.Future[T]:
        """Fail `future` when the session or the connection ends."""
        tracked = cast("asyncio.Future[object]", future)
        self._in_flight[tracked] = None
        tracked.add_done_callback(self._landed)
        return future

    def _landed(self, future: asyncio.Future[object]) -> None:
        self._in_flight.pop(future, None)

    def listen(self, listener: Callable[[StateChange], None]) -> Callable[[], None]:
        """Add a listener; return a function that removes it."""
        self._listeners[listener] = None
        return lambda: self._stop(listener)

    def _stop(self, listener: Callable[[StateChange], None]) -> None:
        self._listeners.pop(listener, None)

    async def wait_connected(self, timeout_ms: int) -> None:
        """Return once connected; raises ConnectionLoss after the timeout, SessionExpired when closed."""
        changed = asyncio.Event()
        stop = self.listen(lambda _: changed.set())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self.connected:
                    if self.state is SessionState.CLOSED:
                        raise SessionExpired("", "the session was closed")
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise ConnectionLoss("", f"not connected within {timeout_ms} ms") from None
        finally:
            stop()

    def _enter(self, state: SessionState) -> None:
        self.state = state
        change = StateChange(state, self.session_number, self.session_id)
        level = logging.WARNING if state in (SessionState.SUSPENDED, SessionState.LOST) else logging.INFO
        log.log(
            level,
            "ZooKeeper session changed",
            extra={"session": f"{self.session_id:#x}", "state": state.value},
        )
        for listener in list(self._listeners):
            _call(listener, change)

    def _fail_in_flight(self, error: ZooKeeperError) -> None:
        for future in list(self._in_flight):
            if not future.done():
                future.set_exception(type(error)(error.path, error.detail))


def _call(callback: Callable[[T], None], argument: T) -> None:
    try:
        callback(argument)
    except Exception:
        # A listener that raises must not keep the others from being called.
        log.exception("a session callback failed")
