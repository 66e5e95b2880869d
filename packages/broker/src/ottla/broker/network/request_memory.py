"""The memory of requests in flight, over all connections: `queued.max.request.bytes`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from ottla.broker.limited_warnings import LimitedWarnings
from ottla.broker.network.frame_progress import STUCK_AFTER_S, FrameProgress, Receiver
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.network.frames import ReceiveBuffer
    from ottla.broker.network.session import Session

log = logging.getLogger("request")

SENT_BY_BROKERS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
    }
)
"""Requests that may be larger than a client's before it is known whether a broker sends them. Their handlers
find that out, and refuse them to clients."""
SMALL_BYTES: Final = 64 << 10
"""Requests up to this size begin however much memory others hold."""


class Receiving(Receiver, Protocol):
    """A connection, as far as it may be closed here."""

    session: Session

    @property
    def connection_id(self) -> str:
        """How logs name it."""
        ...

    @property
    def is_of_broker(self) -> bool:
        """Whether the other end is known to be a broker, which no limit concerns."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...

    def forget_frames(self) -> None:
        """Free the memory of what was received, now and not when the transport reports the end."""
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
        self._large_in_progress = 0
        """The part of them that `has_room` limits."""

    @property
    def held_bytes(self) -> int:
        """Bytes that frames of all connections hold, and requests in progress with them."""
        return self._buffer.held

    # ---- requests in progress

    def begun(self, size: int, *, is_produce: bool) -> None:
        """Count a request that goes on after it has begun."""
        self.in_progress += size
        if size > SMALL_BYTES and not is_produce:
            self._large_in_progress += size
        self._buffer.hold(size)

    def ended(self, size: int, *, is_produce: bool) -> None:
        """Take a request off that was begun."""
        self.in_progress -= size
        if size > SMALL_BYTES and not is_produce:
            self._large_in_progress -= size
        self._buffer.hold(-size)

    def has_room(self, size: int) -> bool:
        """Return whether a large request may begin. Half of the memory is for those in progress.

        Others do not count: while producers are busy, there would never be room.
        """
        return not self._large_in_progress or self._large_in_progress + size <= self._buffer.budget // 2

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
        self._warnings.warn(host, "closing %s: %s", connection.connection_id, why)
        connection.abort()
        connection.forget_frames()
