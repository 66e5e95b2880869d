"""The memory of requests in flight, over all connections: `queued.max.request.bytes`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from ottla.broker.network.frame_progress import STUCK_AFTER_S, FrameProgress, Receiver
from ottla.broker.runtime.log_lines import LimitedWarnings

if TYPE_CHECKING:
    from ottla.broker.network.frames import ReceiveBuffer
    from ottla.broker.network.session import Session
    from ottla.broker.requests.routes import Route

log = logging.getLogger("request")

SMALL_BYTES: Final = 64 << 10
"""Requests up to this size begin however much memory others hold."""


class Share(Enum):
    """The memory from which large requests are allocated."""

    APPENDED = 0
    """Records to append: they hold memory for a short time, and take it from no other request."""
    WORKED_ON = 2
    """Half of the memory, together."""
    WAITING = 4
    """For records or other clients, and as long as its client asks for: a quarter, so that others begin."""


def share_of(route: Route[Any] | None) -> Share:
    """Return the share of requests with a route; None is an API that is not served."""
    if route is None:
        return Share.WORKED_ON
    if route.appends:
        return Share.APPENDED
    waits = route.stops_with_connection or route.waits_for_clients
    return Share.WAITING if waits else Share.WORKED_ON


class Receiving(Receiver, Protocol):
    """A connection, as far as it may be closed here."""

    session: Session

    @property
    def is_of_broker(self) -> bool:
        """Whether the other end is known to be a broker, which no limit concerns."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...

    def forget_frames(self) -> None:
        """Free the memory of received bytes, now and not when the transport reports the end."""
        ...


C = TypeVar("C", bound=Receiving)


class RequestMemory(Generic[C]):
    """Closes connections of clients whose frames are stuck, or too slow for the memory they hold."""

    def __init__(
        self,
        buffer: ReceiveBuffer,
        limit: int,
        connections: Callable[[], Iterable[C]],
        monotonic_ms: Callable[[], float],
    ) -> None:
        """`limit` is `queued.max.request.bytes`; `connections` lists those that are open."""
        self._buffer = buffer
        if limit > 0:
            buffer.budget = limit
        self._connections = connections
        self._progress: FrameProgress[C] = FrameProgress()
        self._warnings = LimitedWarnings(log, monotonic_ms)
        self.in_progress = 0
        """Bytes of requests that were begun and are not answered."""
        self._large_in_progress = dict.fromkeys(Share, 0)

    @property
    def held_bytes(self) -> int:
        """Bytes that frames of all connections hold, and requests in progress with them."""
        return self._buffer.held

    # ---- requests in progress

    def begun(self, size: int, share: Share) -> None:
        """Count a request that goes on after it has begun."""
        self._count(size, size, share)

    def ended(self, size: int, share: Share) -> None:
        """Take a request off that was begun."""
        self._count(size, -size, share)

    def _count(self, size: int, change: int, share: Share) -> None:
        self.in_progress += change
        if size > SMALL_BYTES:
            self._large_in_progress[share] += change
        self._buffer.hold(change)

    def has_room(self, size: int, share: Share) -> bool:
        """Return whether a large request may begin: each share has its part of the memory.

        Others do not count: while producers are busy, there would never be room.
        """
        if share is Share.APPENDED:
            return True
        used = self._large_in_progress[share]
        return not used or used + size <= self._buffer.budget // share.value

    # ---- frames

    def look(self, now_s: float) -> None:
        """Close connections whose frames made no progress for half a minute."""
        for connection in self._progress.look(now_s, self._connections()):
            if not connection.is_of_broker:
                self._close(connection, f"its request is incomplete and nothing came for {STUCK_AFTER_S:g} s")

    def relieve(self) -> None:
        """Close connections, the slowest frames first, until frames hold a quarter less than they may.

        They may hold what requests in progress leave, and at least half of all.
        """
        budget = self._buffer.budget
        most = max(budget // 2, budget - self.in_progress)
        if self._buffer.held - self.in_progress <= most:
            return
        for connection in self._progress.slowest_first(self._connections()):
            if self._buffer.held - self.in_progress <= most - most // 4:
                return
            if not connection.is_of_broker:
                self._close(
                    connection,
                    f"it holds {connection.kept_bytes} bytes of requests, comes slowly, and all requests in "
                    f"flight have reached queued.max.request.bytes ({budget})",
                )

    def _close(self, connection: C, why: str) -> None:
        host = connection.session.client_host
        facts = {"connection": connection.session.connection_id, "reason": why}
        self._warnings.warn(host, "connection closed", extra=facts)
        connection.abort()
        connection.forget_frames()
