"""Requests of all connections that were read and not started yet, and the connections they hold back."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Flushable(Protocol):
    """A connection, as the queue sees it."""

    def flush(self) -> None:
        """Write responses and go on reading."""
        ...


class RequestQueue:
    """Counts queued requests against `queued.max.requests`, and lets connections go on in turn."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.unstarted = 0
        """Requests that were read and wait for their task's first step."""
        self._stalled: dict[Flushable, None] = {}
        self._to_flush: dict[Flushable, None] = {}

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

    def flush_soon(self, connection: Flushable) -> None:
        """Flush a connection at the end of this turn of the loop, once for all its responses."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush_all)
        self._to_flush[connection] = None

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            connection.flush()

    def forget(self, connection: Flushable) -> None:
        """Drop a closed connection."""
        self._stalled.pop(connection, None)
        self._to_flush.pop(connection, None)
