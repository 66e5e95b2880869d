"""Requests of all connections that were read and not started yet, and the connections they hold back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.runtime.loop_budget import Share


class Flushable(Protocol):
    """A connection, as the queue sees it."""

    def flush(self) -> None:
        """Write responses and go on reading."""
        ...

    def fail(self, error: Exception, /) -> None:
        """Log a fault of this broker, and close without the responses that wait."""
        ...


class RequestQueue:
    """Counts queued requests against `queued.max.requests`, and resumes paused connections in turn."""

    def __init__(self, limit: int, share: Share) -> None:
        """`share` is the part of each turn of the event loop that requests of the general path have."""
        self.limit = limit
        self.turn_is_over = share.is_over
        """Return whether requests have had their share of this turn of the event loop."""
        self.unstarted = 0
        """Requests that were read and wait for their task's first step."""
        self._stalled: dict[Flushable, None] = {}
        self._to_flush: dict[Flushable, None] = {}
        self._flush_is_planned = False

    def has_room(self, connection: Flushable) -> bool:
        """Return whether one more request may be read; if not, flush the connection when there is room."""
        if self.unstarted < self.limit:
            return True
        self.stall(connection)
        return False

    def stall(self, connection: Flushable) -> None:
        """Flush the connection when there may be room."""
        self._stalled[connection] = None

    def started(self) -> None:
        """Count one queued request as started."""
        self.unstarted -= 1
        self.wake()

    def wake(self) -> None:
        """Flush the connections that found no room, in turn."""
        if self._stalled:
            stalled, self._stalled = self._stalled, {}
            for connection in stalled:  # those that still find no room stall again, in the same order
                self.flush_soon(connection)

    # ---- turns of the event loop

    def flush_soon(self, connection: Flushable) -> None:
        """Flush a connection at the end of this turn of the loop, once for all its responses."""
        self._to_flush[connection] = None
        if not self._flush_is_planned:
            self._flush_is_planned = True
            asyncio.get_running_loop().call_soon(self._flush_all)

    def _flush_all(self) -> None:
        """Flush in turn; connections for which there is no time come first in the next turn.

        A connection whose flush fails is closed, and those behind it are flushed all the same.
        """
        connections, self._to_flush = self._to_flush, {}
        self._flush_is_planned = False
        while connections:
            connection = next(iter(connections))
            del connections[connection]
            try:
                connection.flush()
            except Exception as error:
                connection.fail(error)
            if connections and self.turn_is_over():
                self._to_flush = connections | self._to_flush
                break
        if self._to_flush and not self._flush_is_planned:
            self._flush_is_planned = True
            asyncio.get_running_loop().call_soon(self._flush_all)

    def forget(self, connection: Flushable) -> None:
        """Drop a closed connection."""
        self._stalled.pop(connection, None)
        self._to_flush.pop(connection, None)
